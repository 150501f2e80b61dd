"""Resolve e-mails that may or may not have been sent, from the page or by command.

Only the mail server's log can tell, by Message-ID, if the customer got the e-mail. A person checks it and decides:
`resend` (it may arrive twice) or `sent` (it may never arrive).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, models
from django.utils.translation import gettext_lazy as _

from orders.models import Order
from tasks.operations import short_waits
from tasks.operations.verb import Refusal
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.durations import StatementTimestamp

CHUNK = 1000


class Decision(models.TextChoices):
    """A person's decision about an e-mail that may or may not have been sent; the label is its consequence."""

    RESEND = "resend", _("send it again: the customer may get it twice, with the same Message-ID")
    SENT = "sent", _("take it as sent: if it never went out, the customer gets none")


COLUMNS: dict[Decision, dict[str, Any]] = {
    Decision.RESEND: {"email_state": Order.EmailState.NONE, "email_owner": "", "email_next_at": None},
    Decision.SENT: {"email_state": Order.EmailState.SENT, "shipped_email_sent": True},
}


@dataclass
class Resolution:
    """The result: ids of resolved orders, and the refusal of each other one."""

    resolved: list[int] = field(default_factory=list)
    refused: dict[int, Refusal] = field(default_factory=dict)


def resolve(
    ids: Iterable[int],
    decision: Decision,
    who: Who,
    *,
    reason: str = "",
    versions: Mapping[int, int] | None = None,
    dry_run: bool = False,
) -> Resolution:
    """Record a decision about orders whose e-mail may or may not have been sent; refuse all others, and locked ones.

    `versions` holds the version of each order that the person saw; an order that changed since is refused. Each
    resolved order writes one intervention in the same transaction. A dry run does all of it and rolls back.
    """
    chosen = list(dict.fromkeys(ids))
    resolution = Resolution()
    for start in range(0, len(chosen), CHUNK):
        with short_waits(rollback=dry_run):
            orders, refused = _lock(chosen[start : start + CHUNK], versions or {})
            if orders:
                _write(orders, decision, who, reason)
        resolution.resolved += [order.pk for order in orders]
        resolution.refused |= refused
    return resolution


def _lock(ids: list[int], versions: Mapping[int, int]) -> tuple[list[Order], dict[int, Refusal]]:
    """Lock these orders. Returns those to resolve, and the refusals of the others."""
    rows = Order.objects.filter(pk__in=ids).order_by("pk").select_for_update(no_key=True, skip_locked=True)
    locked = {order.pk: order for order in rows}
    existing = set(Order.objects.filter(pk__in=ids).values_list("pk", flat=True)) if len(locked) < len(ids) else set()
    refused = {}
    for pk in ids:
        refusal = _refusal(locked.get(pk), pk in existing, versions.get(pk))
        if refusal:
            refused[pk] = refusal
    return [order for pk, order in locked.items() if pk not in refused], refused


def _refusal(order: Order | None, is_there: bool, seen: int | None) -> Refusal | None:
    if order is None:
        if is_there:
            return Refusal("locked", "another session holds its row at this moment; try again")
        return Refusal("missing", "there is no such order")
    if seen not in (None, order.version):
        return Refusal(
            "changed", f"it changed since you looked (version {seen}, now {order.version}): its e-mail is "
            f"{order.email_state} now; review again"
        )  # fmt: skip
    if order.email_state != Order.EmailState.UNKNOWN or order.shipped_email_sent:
        state = Order.EmailState.SENT if order.shipped_email_sent else order.email_state
        return Refusal("known", f"its e-mail is `{state}`, not `unknown`; there is nothing to resolve")
    return None


def _write(orders: list[Order], decision: Decision, who: Who, reason: str) -> None:
    rows = Order.objects.filter(pk__in=[order.pk for order in orders])
    rows.update(email_since=StatementTimestamp(), **COLUMNS[decision])
    versions = dict(rows.values_list("pk", "version"))
    changes = [Change(f"order:{order.pk}", order.version, versions[order.pk]) for order in orders]
    audit.record(connection, who, f"resolve-email as={decision.value}", changes, reason)
