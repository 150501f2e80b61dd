"""E-mails about shipped orders: one for each, even when several runs overlap.

A crash can happen between the server's "250 OK" and our commit, and nothing makes both change together. So the operator
chooses which error a crash may cause:

- `send_first` sends, then marks: a crash in between sends the e-mail again, with the same Message-ID. At least once.
- `mark_first` marks, commits, then sends: a crash in between leaves it unknown, for a person to resolve. At most once.

Only the mail server's log can tell, by Message-ID, if the customer got an unknown one. A person checks it and decides:
`resend` (it may arrive twice) or `sent` (it may never arrive).
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import connection, models, transaction
from django.utils.translation import gettext_lazy as _

from orders.mailer import Ending, Mailer, Result
from orders.models import Order, Sender
from tasks.framework import declaration
from tasks.locking import double_checked
from tasks.locking.double_checked import UNTIL_EMPTY, OnLocked, Progress
from tasks.locking.report import SHOWN, Outcome, Report, describe
from tasks.operations import short_waits
from tasks.operations.verb import Refusal
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.durations import StatementTimestamp

logger = logging.getLogger(__name__)
PERMANENT_FACTOR = 300
LONGEST_SECONDS = 24 * 3600.0
OURS = (Order.EmailState.SENDING, Order.EmailState.UNKNOWN)


@dataclass
class ShippingReport:
    """The rows of the run and the ending of each e-mail by order; `stopped` says why a run gave up early.

    In `send_first` some of the failed e-mails may have gone out; all of them are sent again.
    """

    rows: Report
    endings: dict[int, Ending]
    stopped: str = ""

    @property
    def sent(self) -> int:
        return self._count(Result.SENT)

    @property
    def failed(self) -> int:
        return self._count(Result.FAILED)

    @property
    def unknown(self) -> int:
        return self._count(Result.UNKNOWN)

    def _count(self, result: Result) -> int:
        return sum(ending.result is result for ending in self.endings.values())

    @property
    def locked(self) -> list[int]:
        """Orders that were skipped because another session held them."""
        return self.rows.locked

    @property
    def troubles(self) -> dict[int, Ending]:
        return {key: ending for key, ending in self.endings.items() if ending.result is not Result.SENT}

    @property
    def problems(self) -> list[str]:
        """One line for each order that may need a person."""
        return [f"Order {key}: {ending.result}: {ending.reply}." for key, ending in self.troubles.items()]

    @property
    def failure(self) -> str:
        """The error message that ends a command, or an empty text."""
        parts = []
        if self.failed:
            parts.append(f"{self.failed} not sent, to be tried again")
        if self.unknown:
            parts.append(f"{self.unknown} may have been sent: resolve with resolve_emails or on the orders' page")
        if self.stopped:
            parts.append(f"the mail server cannot be reached, so the run ended early ({self.stopped})")
        return f"{'; '.join(parts)}." if parts else ""

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON, with at most the first hundred failures."""
        return {
            "candidates": self.rows.candidates,
            "sent": self.sent,
            "unknown": self.unknown,
            "skipped_locked": self.rows.skipped_locked,
            "already_done": self.rows.already_done,
            "failed": self.failed,
            "rounds": self.rows.rounds,
            "queries": self.rows.queries,
            "stopped": self.stopped,
            "failures": [
                {"id": key, "result": ending.result.value, "reply": ending.reply}
                for key, ending in list(self.troubles.items())[:SHOWN]
            ],
        }

    def __str__(self) -> str:
        return (
            f"{self.rows.candidates} orders found: {self.sent} e-mails sent, {self.failed} failed, "
            f"{self.unknown} unknown, {self.rows.skipped_locked} left to whoever holds them, "
            f"{self.rows.already_done} done by others."
        )


class Mode(models.TextChoices):
    """The order of sending and marking; the labels are shown in every choice of a mode."""

    SEND_FIRST = (
        "send_first",
        _(
            "Send, then mark: at least once. Only this mode can send an e-mail twice: after a crash in between, or "
            "when the server gave no answer."
        ),
    )
    MARK_FIRST = (
        "mark_first",
        _(
            "Mark, then send: at most once. Only this mode can leave an e-mail that may or may not have been sent, "
            "after a crash in between or when the server gave no answer; a person resolves it."
        ),
    )


def ship(
    mode: str = Mode.SEND_FIRST,
    *,
    on_locked: OnLocked = "skip",
    limit: int | None = None,
    until_empty: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ShippingReport:
    """Send the e-mails that are due, and mark those of dead senders as unknown; runs may overlap.

    Runs of both modes may overlap too. `until_empty` repeats until no order is due, up to a bound; `dry_run` locks the
    same orders and releases them. The other options and the errors are those of `double_checked(…).each`.

    A run with nothing to do costs one query. A run gives up after three attempts in a row that did not reach the mail
    server.
    """
    with Run() as run:
        body = {Mode.SEND_FIRST: run.send_then_mark, Mode.MARK_FIRST: run.mark_then_send}[Mode(mode)]

        def go_on(rows: Report) -> bool:
            return not run.mailer.gave_up and (progress is None or progress(rows) is not False)

        rows = double_checked(Order.objects.to_handle()).each(
            run.pretend if dry_run else body,
            on_locked=on_locked,
            limit=limit,
            max_rounds=UNTIL_EMPTY if until_empty else 1,
            progress=go_on,
        )
    # A row whose commit failed was rolled back: its error counts, not the ending of its e-mail.
    done = {key: run.endings[key] for key in rows.keys(Outcome.DONE) if key in run.endings}
    failed = {key: Ending(Result.FAILED, describe(error)) for key, error in rows.errors.items()}
    return ShippingReport(rows, done | failed, run.mailer.gave_up)


class Run(AbstractContextManager["Run"]):
    """One run: its connection to the mail server, its sender's lock, and the ending of each e-mail."""

    def __init__(self) -> None:
        self.mailer = Mailer()
        self.sender = Sender()
        self.endings: dict[int, Ending] = {}

    def __exit__(self, *error: object) -> None:
        self.sender.close()
        self.mailer.close()

    def send_then_mark(self, order: Order) -> None:
        """The body of `send_first`: the order stays locked from the check to the commit."""
        if is_abandoned(order):
            self._call_unknown(order)
            return
        order.email_attempts += 1
        ending = self.mailer.send(order)
        if ending.result is Result.UNKNOWN:  # this mode may send twice
            ending = ending._replace(result=Result.FAILED)
        self._note(order, ending)

    def mark_then_send(self, order: Order) -> None:
        """The body of `mark_first`: it only marks under the lock; the e-mail goes out after the commit."""
        if is_abandoned(order):
            self._call_unknown(order)
            return
        order.email_owner = self.sender.introduce()
        order.email_attempts += 1
        Order.objects.filter(pk=order.pk).update(
            email_state=Order.EmailState.SENDING,
            email_owner=order.email_owner,
            email_since=StatementTimestamp(),
            email_attempts=order.email_attempts,
        )
        transaction.on_commit(partial(self._send_marked, order))

    def pretend(self, order: Order) -> None:
        self.endings[order.pk] = Ending(Result.UNKNOWN if is_abandoned(order) else Result.SENT, "dry run")
        transaction.set_rollback(True)

    def _send_marked(self, order: Order) -> None:
        """Send, then write the ending if the order still names us: a person may have resolved it meanwhile.

        An `unknown` order may be ours too: another run marks it so if our session breaks while we live.
        """
        ending = self.mailer.send(order)
        if not self._note(order, ending, email_owner=order.email_owner, email_state__in=OURS):
            logger.warning("order %s was resolved while its e-mail was on its way: %s", order.pk, ending.reply)

    def _call_unknown(self, order: Order) -> None:
        reply = f"its sender {order.email_owner} ended before it had noted the server's answer"
        self._note(order, Ending(Result.UNKNOWN, reply))

    def _note(self, order: Order, ending: Ending, **expected: Any) -> bool:
        """Write the ending by an UPDATE of its columns alone: `save()` would write stale ones back.

        Returns False if the row no longer has the `expected` values.
        """
        self.endings[order.pk] = ending
        row = Order.objects.filter(pk=order.pk, **expected)
        return row.update(**columns(ending, order.email_attempts)) == 1


def is_abandoned(order: Order) -> bool:
    """True for an order marked as being sent; among the rows that a run handles, its sender is gone."""
    return order.email_state == Order.EmailState.SENDING


def columns(ending: Ending, attempt: int) -> dict[str, Any]:
    """Column values of the row after attempt number `attempt`."""
    ended: dict[str, Any] = {
        "email_reply": ending.reply,
        "email_since": StatementTimestamp(),
        "email_attempts": attempt,
        "email_next_at": None,
    }
    if ending.result is Result.SENT:
        return ended | {"email_state": Order.EmailState.SENT, "shipped_email_sent": True}
    if ending.result is Result.UNKNOWN:
        return ended | {"email_state": Order.EmailState.UNKNOWN}
    pause = timedelta(seconds=retry_seconds(attempt, is_permanent=ending.is_permanent))
    next_at = StatementTimestamp() + pause
    return ended | {"email_state": Order.EmailState.NONE, "email_owner": "", "email_next_at": next_at}


def retry_seconds(attempt: int, *, is_permanent: bool, random: float | None = None) -> float:
    """Seconds until the next attempt: 1 s to an hour, and after a permanent refusal 5 minutes to a day.

    `random` in [0, 1) fixes the jitter.

    >>> retry_seconds(1, is_permanent=False, random=0.0), retry_seconds(1, is_permanent=True, random=0.0)
    (1.0, 300.0)
    >>> retry_seconds(30, is_permanent=True, random=0.0)
    86400.0
    """
    seconds = declaration.exponential(attempt, random=random)
    return min(PERMANENT_FACTOR * seconds, LONGEST_SECONDS) if is_permanent else seconds


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
