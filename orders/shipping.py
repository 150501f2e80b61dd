"""E-mails about shipped orders: one for each, even when several runs overlap.

A crash can happen between the server's "250 OK" and our commit, and nothing makes both change together. So the operator
chooses which error a crash may cause:

- `send_first` sends, then marks: a crash in between sends the e-mail again, with the same Message-ID. At least once.
- `mark_first` marks, commits, then sends: a crash in between leaves it unknown, for a person to resolve. At most once.
"""

import logging
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

from django.db import models, transaction
from django.utils.translation import gettext_lazy as _

from orders.mailer import Ending, Fate, Mailer
from orders.models import Order
from orders.querysets import Sender
from orders.shipping_report import Noted, Result, ShippingReport
from tasks.framework import backoff
from tasks.locking import Report, double_checked
from tasks.locking.double_checked import UNTIL_EMPTY, OnLocked, Progress
from tasks.support.durations import StatementTimestamp

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
