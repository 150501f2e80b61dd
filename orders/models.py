"""Orders with one e-mail at shipment, and customers' accounts: a domain built on the locking primitives."""

from decimal import Decimal

from django.conf import settings
from django.db import models
from django.db.models import ExpressionWrapper, F, Q
from django.utils.translation import gettext_lazy as _

from orders.querysets import PENDING, OrderQuerySet
from tasks.locking import VersionedModel
from tasks.support.durations import StatementTimestamp


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
    email_owner = models.TextField(default="", db_default="", blank=True)  # see orders/querysets.py
    email_since = models.DateTimeField(null=True, blank=True)
    email_attempts = models.SmallIntegerField(default=0, db_default=0)
    email_next_at = models.DateTimeField(null=True, blank=True)
    email_reply = models.TextField(default="", db_default="", blank=True)

    objects = OrderQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["id"],
                condition=PENDING,
                name="orders_order_to_mail",
            ),
            models.Index(fields=["id"], condition=Q(email_state="unknown"), name="orders_order_unknown"),
            models.Index(
                ExpressionWrapper(PENDING, models.BooleanField()).desc(),
                F("id").desc(),
                name="orders_order_pending_first",
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
        return f"Order {self.pk}"


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
        return f"Account {self.pk}"


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
