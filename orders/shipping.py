"""E-mails about shipped orders: one for each, even when several runs overlap.

A crash can happen between the server's "250 OK" and our commit, and nothing makes both change together. So the operator
chooses which error a crash may cause:

- `send_first` sends, then marks: a crash in between sends the e-mail again, with the same Message-ID. At least once.
- `mark_first` marks, commits, then sends: a crash in between leaves it unknown, for a person to resolve. At most once.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from django.db import models, transaction
from django.utils.translation import gettext_lazy as _

from orders.mailer import Ending, Fate, Mailer
from orders.models import Order, Sender
from tasks.framework import backoff
from tasks.locking import double_checked
from tasks.locking.double_checked import UNTIL_EMPTY, OnLocked, Progress
from tasks.locking.report import SHOWN, Outcome, Report, describe
from tasks.support.durations import StatementTimestamp


class Result(StrEnum):
    """The outcome of one order's e-mail in this run."""

    SENT = "sent"
    FAILED = "failed"  # will be retried
    UNKNOWN = "unknown"  # for a person to resolve


class Noted(NamedTuple):
    """A result and the server's last reply about it."""

    result: Result
    reply: str


@dataclass
class ShippingReport:
    """The rows of the run and the outcome of each e-mail; `stopped` says why a run gave up early."""

    rows: Report = field(default_factory=Report)
    results: dict[int, Noted] = field(default_factory=dict)
    stopped: str = ""

    @property
    def sent(self) -> int:
        return self._count(Result.SENT)

    @property
    def failed(self) -> int:
        """E-mails to retry (in `send_first` some may have gone out), and rows whose transaction failed."""
        return self._count(Result.FAILED) + self.rows.failed

    @property
    def unknown(self) -> int:
        """Unanswered e-mails of this run, and those left by a dead sender."""
        return self._count(Result.UNKNOWN)

    @property
    def locked(self) -> list[int]:
        """Orders that were skipped because another session held them."""
        return self.rows.locked

    @property
    def problems(self) -> list[str]:
        """One line for each order that may need a person."""
        return [f"Order {one['id']}: {one['result']}: {one['reply']}." for one in self._troubled()]

    @property
    def failure(self) -> str:
        """The error message that ends a command, or an empty text."""
        parts = []
        if self.failed:
            parts.append(f"{self.failed} not sent, to be tried again")
        if self.unknown:
            parts.append(f"{self.unknown} of unknown fate, to be resolved with resolve_emails or on the orders' page")
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
            "failures": self._troubled()[:SHOWN],
        }

    def __str__(self) -> str:
        return (
            f"{self.rows.candidates} orders found: {self.sent} e-mails sent, {self.failed} failed, "
            f"{self.unknown} of unknown fate, {self.rows.skipped_locked} left to whoever holds them, "
            f"{self.rows.already_done} done by others."
        )

    def _handled(self) -> Iterator[tuple[int, Noted]]:
        """Results of committed rows; a row whose commit failed was rolled back, so its result does not count."""
        for key in self.rows.keys(Outcome.DONE):
            if key in self.results:
                yield key, self.results[key]

    def _count(self, result: Result) -> int:
        return sum(noted.result is result for _, noted in self._handled())

    def _troubled(self) -> list[dict[str, Any]]:
        troubled = [
            {"id": key, "result": noted.result.value, "reply": noted.reply}
            for key, noted in self._handled()
            if noted.result is not Result.SENT
        ]
        errors = [
            {"id": key, "result": Result.FAILED.value, "reply": describe(error)}
            for key, error in self.rows.errors.items()
        ]
        return troubled + errors


logger = logging.getLogger(__name__)
PERMANENT_FACTOR = 300
LONGEST_SECONDS = 24 * 3600.0
OURS = (Order.EmailState.SENDING, Order.EmailState.UNKNOWN)
AT_MOST_ONCE = {Fate.SENT: Result.SENT, Fate.NOT_SENT: Result.FAILED, Fate.UNANSWERED: Result.UNKNOWN}


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
            "Mark, then send: at most once. Only this mode can leave an e-mail of unknown fate, after a crash in "
            "between or when the server gave no answer; a person resolves it."
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

    Args:
        mode: a Mode; runs of both modes may overlap.
        on_locked: see `double_checked`; a locked order most likely belongs to another run.
        limit: the most orders to handle.
        until_empty: repeat until no order is due, up to a bound.
        dry_run: lock the same orders and release them; nothing is sent or changed.
        progress: called after each order; False ends the run.

    A run with nothing to do costs one query. A run gives up after three attempts in a row that did not reach the mail
    server. Raises as `double_checked(…).each` does.
    """
    chosen = Mode(mode)
    with Run() as run:
        bodies = {Mode.SEND_FIRST: run.send_then_mark, Mode.MARK_FIRST: run.mark_then_send}

        def go_on(rows: Report) -> bool:
            return not run.mailer.has_given_up and (progress is None or progress(rows) is not False)

        rows = double_checked(Order.objects.to_handle()).each(
            run.pretend if dry_run else bodies[chosen],
            on_locked=on_locked,
            limit=limit,
            max_rounds=UNTIL_EMPTY if until_empty else 1,
            progress=go_on,
        )
    return ShippingReport(rows, run.results, run.mailer.last_problem if run.mailer.has_given_up else "")


class Run:
    """One run: its connection to the mail server, its sender's lock, and the outcome of each e-mail."""

    def __init__(self) -> None:
        self.mailer = Mailer()
        self.sender = Sender()
        self.results: dict[int, Noted] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.sender.close()
        self.mailer.close()

    def send_then_mark(self, order: Order) -> None:
        """The body of `send_first`: the order stays locked from the check to the commit."""
        if is_abandoned(order):
            return self._call_unknown(order)
        ending = self.mailer.send(order)
        result = Result.SENT if ending.fate is Fate.SENT else Result.FAILED
        itself(order).update(**columns(result, ending, order.email_attempts + 1))
        return self._note(order, result, ending.reply)

    def mark_then_send(self, order: Order) -> None:
        """The body of `mark_first`: it only marks under the lock; the e-mail goes out after the commit."""
        if is_abandoned(order):
            return self._call_unknown(order)
        order.email_owner = self.sender.introduce()
        order.email_attempts += 1
        itself(order).update(
            email_state=Order.EmailState.SENDING,
            email_owner=order.email_owner,
            email_since=StatementTimestamp(),
            email_attempts=order.email_attempts,
        )
        return transaction.on_commit(partial(self._send_marked, order))

    def pretend(self, order: Order) -> None:
        self._note(order, Result.UNKNOWN if is_abandoned(order) else Result.SENT, "dry run")
        transaction.set_rollback(True)

    def _send_marked(self, order: Order) -> None:
        """Send, then write the outcome if the order still names us: a person may have resolved it meanwhile.

        An `unknown` order may be ours too: another run marks it so if our session breaks while we live.
        """
        ending = self.mailer.send(order)
        result = AT_MOST_ONCE[ending.fate]
        ours = itself(order).filter(email_owner=order.email_owner, email_state__in=OURS)
        if not ours.update(**columns(result, ending, order.email_attempts)):
            logger.warning("order %s was resolved while its e-mail was on its way: %s", order.pk, ending.reply)
        self._note(order, result, ending.reply)

    def _call_unknown(self, order: Order) -> None:
        reply = f"its sender {order.email_owner} ended before it had noted the server's answer"
        itself(order).update(**columns(Result.UNKNOWN, Ending(Fate.UNANSWERED, reply), order.email_attempts))
        self._note(order, Result.UNKNOWN, reply)

    def _note(self, order: Order, result: Result, reply: str) -> None:
        self.results[order.pk] = Noted(result, reply)


def is_abandoned(order: Order) -> bool:
    """True for an order marked as being sent; among the rows that a run handles, its sender is gone."""
    return order.email_state == Order.EmailState.SENDING


def itself(order: Order) -> "models.QuerySet[Order]":
    """The row alone, for an UPDATE of named columns: `save()` would write stale ones back."""
    return Order.objects.filter(pk=order.pk)


def columns(result: Result, ending: Ending, attempt: int) -> dict[str, Any]:
    """Column values of the row after attempt number `attempt` ended with `result`."""
    told = {"email_reply": ending.reply, "email_since": StatementTimestamp(), "email_attempts": attempt}
    if result is Result.SENT:
        return told | {"email_state": Order.EmailState.SENT, "shipped_email_sent": True, "email_next_at": None}
    if result is Result.UNKNOWN:
        return told | {"email_state": Order.EmailState.UNKNOWN, "email_next_at": None}
    pause = timedelta(seconds=retry_seconds(attempt, is_permanent=ending.is_permanent))
    again = {"email_state": Order.EmailState.NONE, "email_owner": "", "email_next_at": StatementTimestamp() + pause}
    return told | again


def retry_seconds(attempt: int, *, is_permanent: bool, random: float | None = None) -> float:
    """Seconds until the next attempt: 1 s to an hour, and after a permanent refusal 5 minutes to a day.

    `random` in [0, 1) fixes the jitter.

    >>> retry_seconds(1, is_permanent=False, random=0.0), retry_seconds(1, is_permanent=True, random=0.0)
    (1.0, 300.0)
    >>> retry_seconds(30, is_permanent=True, random=0.0)
    86400.0
    """
    seconds = backoff.exponential(attempt, random=random)
    return min(PERMANENT_FACTOR * seconds, LONGEST_SECONDS) if is_permanent else seconds
