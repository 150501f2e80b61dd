"""QuerySet adjectives for orders, so that each criterion is written once."""

from typing import TYPE_CHECKING, Self

from django.db import models
from django.db.models import BooleanField, ExpressionWrapper, F, Q

from orders.senders import SenderIsGone
from tasks.clock import StatementTimestamp

if TYPE_CHECKING:
    from orders.models import Order  # noqa: F401

PENDING = Q(shipped_at__isnull=False, shipped_email_sent=False)  # the condition of a partial index


class OrderQuerySet(models.QuerySet["Order"]):
    """Orders by what their e-mail needs next."""

    def pending(self) -> Self:
        """Shipped, and not marked as mailed."""
        return self.filter(PENDING)

    def pending_first(self) -> Self:
        """Pending orders, then the others; newest first. An index holds this order."""
        return self.alias(is_pending=ExpressionWrapper(PENDING, BooleanField())).order_by("-is_pending", "-pk")

    def to_mail(self) -> Self:
        """Pending orders that nobody is sending and that do not wait for a retry."""
        return self.pending().filter(_is_due())

    def abandoned(self) -> Self:
        """Marked as being sent by a sender that is gone: the e-mail may or may not have been sent."""
        return self.pending().filter(_is_abandoned())

    def to_handle(self) -> Self:
        """Orders that a run handles: orders to mail, and abandoned ones."""
        return self.pending().filter(_is_due() | _is_abandoned())

    def of_unknown_fate(self) -> Self:
        return self.pending().filter(email_state="unknown")


def _is_due() -> Q:
    return Q(email_state="none") & (Q(email_next_at__isnull=True) | Q(email_next_at__lte=StatementTimestamp()))


def _is_abandoned() -> Q:
    return Q(SenderIsGone(F("email_owner")), email_state="sending")
