"""Adjectives for orders, so that the criteria of each look are written once."""

from typing import TYPE_CHECKING, Self

from django.db import models
from django.db.models import Q

from tasks.clock import StatementTimestamp

if TYPE_CHECKING:
    from orders.models import Order  # noqa: F401


class OrderQuerySet(models.QuerySet["Order"]):
    """Orders by what is to be done about their e-mail."""

    def to_mail(self) -> Self:
        """Shipped, not mailed, nobody at it, and not waiting for its next attempt."""
        return self.unmailed().filter(email_state="none").filter(
            Q(email_next_at__isnull=True) | Q(email_next_at__lte=StatementTimestamp())
        )  # fmt: skip

    def unmailed(self) -> Self:
        return self.filter(shipped_at__isnull=False, shipped_email_sent=False)

    def being_mailed(self) -> Self:
        return self.filter(email_state="sending", shipped_email_sent=False, shipped_at__isnull=False)

    def of_unknown_fate(self) -> Self:
        return self.filter(email_state="unknown", shipped_email_sent=False, shipped_at__isnull=False)
