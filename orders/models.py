"""Orders with one e-mail at shipment, and customers' accounts: a domain built on the locking primitives.

An order that is marked before its e-mail goes out names its sender. The sender holds an advisory lock, which PostgreSQL
drops with the session, even after kill -9. So `pg_locks` shows the living senders, and no timeout is needed. The lock's
class comes from the schema, its key from the sender's random id.
"""

import os
import secrets
import socket
from decimal import Decimal
from typing import ClassVar, Self

import psycopg
from django.conf import settings
from django.db import models
from django.db.models import BooleanField, ExpressionWrapper, F, Field, Func, Q
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from tasks.locking import VersionedModel
from tasks.support.database import name_of_this_process, own_session
from tasks.support.durations import StatementTimestamp

TAKE = "SELECT pg_try_advisory_lock(hashtext('rowlock:sender:' || current_schema()), hashtext(%(id)s::text))"


class SenderIsGone(Func):
    """True if the session of the sender that this column names has ended.

    A sender holds its lock from before it writes its name until its last order is done. So a name without a lock means
    a dead sender, or an order that was finished after it was read; the second check, under the row's lock, tells.
    `objid` and `classid` are unsigned, `hashtext` is not.
    """

    template = """NOT hashtext(%(expressions)s)::bigint & 4294967295 IN (
        SELECT objid::bigint FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 2 AND granted
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND classid::bigint = (hashtext('rowlock:sender:' || current_schema())::bigint & 4294967295))"""
    output_field: ClassVar[Field] = BooleanField()


class Sender:
    """One run that sends e-mails; its own session starts at `introduce` and ends at `close`."""

    def __init__(self) -> None:
        self.id = ""
        self._session: psycopg.Connection | None = None

    def introduce(self) -> str:
        """Take the lock once; returns the sender's id, which contains host and process id."""
        if self._session is None:
            self._session = own_session(name_of_this_process() or "rowlock")
        while not self.id:
            chosen = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
            if self._session.execute(TAKE, {"id": chosen}).fetchone() == (True,):
                self.id = chosen
        return self.id

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


UNSENT = ("none", "sending", "unknown")
PENDING = Q(shipped_at__isnull=False, shipped_email_sent=False)  # the condition of a partial index
DUE = Q(email_state="none") & (Q(email_next_at__isnull=True) | Q(email_next_at__lte=StatementTimestamp()))
ABANDONED = Q(SenderIsGone(F("email_owner")), email_state="sending")


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
        return self.pending().filter(DUE)

    def to_handle(self) -> Self:
        """Orders that a run handles: orders to mail, and those that a dead sender left, whose fate is unknown."""
        return self.pending().filter(DUE | ABANDONED)

    def of_unknown_fate(self) -> Self:
        return self.pending().filter(email_state="unknown")


class Order(VersionedModel):
    """One order. Once shipped it gets one e-mail; `email_state` is the progress of that e-mail."""

    class EmailState(models.TextChoices):
        NONE = "none", _("Not sent")  # to be sent, or retried at `email_next_at`
        SENDING = "sending", _("Sending")  # `email_owner` marked it and sends it now
        SENT = "sent", _("Sent")
        UNKNOWN = "unknown", _("Unknown")  # its sender died, or the server did not answer after DATA

    customer_email = models.EmailField()
    placed_at = models.DateTimeField(db_default=StatementTimestamp())
    shipped_at = models.DateTimeField(null=True, blank=True)
    shipped_email_sent = models.BooleanField(default=False, db_default=False)
    email_state = models.TextField(choices=EmailState, default=EmailState.NONE, db_default=EmailState.NONE)
    email_owner = models.TextField(default="", db_default="", blank=True)  # see orders/models.py
    email_since = models.DateTimeField(null=True, blank=True)
    email_attempts = models.SmallIntegerField(default=0, db_default=0)
    email_next_at = models.DateTimeField(null=True, blank=True)
    email_reply = models.TextField(default="", db_default="", blank=True)

    objects = OrderQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["id"], condition=PENDING, name="orders_order_to_mail"),
            # Small, as most orders are sent: finds and counts those of any other state.
            models.Index(
                fields=["email_state", "id"], condition=Q(email_state__in=UNSENT), name="orders_order_by_state"
            ),
            models.Index(
                ExpressionWrapper(PENDING, BooleanField()).desc(), F("id").desc(), name="orders_order_pending_first"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(email_state__in=("none", "sending", "sent", "unknown")),
                name="orders_order_email_state_known",
            ),
            models.CheckConstraint(
                condition=~Q(email_state="sent") | Q(shipped_email_sent=True), name="orders_order_sent_is_sent"
            ),
            models.CheckConstraint(
                condition=Q(email_state="none") | Q(shipped_at__isnull=False), name="orders_order_mail_only_shipped"
            ),
            models.CheckConstraint(
                condition=~Q(email_state="sending") | ~Q(email_owner=""), name="orders_order_sending_has_owner"
            ),
        ]
        permissions = [("ship_order", _("Can send the e-mails of shipped orders, and resolve unknown ones"))]

    def __str__(self) -> str:
        return gettext("Order %(id)s") % {"id": self.pk}


class Account(VersionedModel):
    """A customer's account. Its balance is the sum of its entries; the database refuses a negative one."""

    owner = models.ForeignKey(  # scripts know the column by this name
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="accounts", db_column="owner"
    )
    balance = models.DecimalField(max_digits=12, decimal_places=2, default=Decimal(0), db_default=Decimal(0))

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(balance__gte=0), name="orders_account_balance_not_negative")]
        permissions = [("move_money", _("Can deposit, withdraw and transfer money"))]

    def __str__(self) -> str:
        return gettext("Account %(id)s") % {"id": self.pk}


class Entry(models.Model):
    """One line of the ledger: one change of an account's balance, written in the same transaction."""

    class Kind(models.TextChoices):
        DEPOSIT = "deposit", _("Deposit")
        WITHDRAWAL = "withdrawal", _("Withdrawal")
        TRANSFER = "transfer", _("Transfer")

    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="entries")
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    kind = models.TextField(choices=Kind)
    transfer_id = models.UUIDField(null=True, blank=True)  # shared by both entries of a transfer
    at = models.DateTimeField(db_default=StatementTimestamp())

    class Meta:
        indexes = [models.Index(fields=["account", "id"], name="orders_entry_account")]
        constraints = [models.CheckConstraint(condition=~Q(amount=0), name="orders_entry_amount_not_zero")]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount} on account {self.account_id}"
