"""Double-checked locking: read the candidates, lock each row alone, and check again under its lock.

A refusal names the reason and what to do instead.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from django.db import NotSupportedError, connections, models, transaction
from django.db.models.expressions import Subquery
from django.db.models.sql import Query

from tasks.locking.report import Outcome, Report, counting_queries
from tasks.support.database import is_lock_not_available

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=models.Model)
OnLocked = Literal["skip", "report", "wait"]
Progress = Callable[[Report], bool | None]

CHUNK = 1000  # keys, not rows
LOST_IN_A_ROW = 3
PAUSE_SECONDS = (0.05, 1.0)  # between two rounds: first and longest pause
UNTIL_EMPTY = 20  # rounds, some 15 s of pauses

Around = Callable[[Any], AbstractContextManager[object]]
_around: ContextVar[Around] = ContextVar("around each row", default=nullcontext)

LIMIT_WAIT = "SELECT set_config('lock_timeout', %(limit)s, true)"


@contextmanager
def around_each_row(around: Around) -> Iterator[None]:
    """Within the block `each` calls every body inside `around(row)`; for measuring from outside."""
    token = _around.set(around)
    try:
        yield
    finally:
        _around.reset(token)


def double_checked(queryset: "models.QuerySet[M]") -> "DoubleChecked[M]":
    """The rows that meet the criteria, for `each(body)` to handle one by one under their lock.

    The criteria of `queryset` are written once and checked twice. It may filter, exclude, annotate, join and
    select_related; it may not be sliced, combined, distinct or grouped, and must give model instances. With joins or
    subqueries a third check follows once the row is locked; tables named only in raw SQL are not recognised. Raises
    NotSupportedError where PostgreSQL could not lock its rows.
    """
    refuse_unlockable(queryset)
    return DoubleChecked(queryset)


class DoubleChecked(Generic[M]):
    """A queryset whose rows are locked and checked again one by one."""

    def __init__(self, queryset: "models.QuerySet[M]") -> None:
        # A router may send the first read to a replica; both reads belong where the lock is.
        self.queryset = queryset.using(queryset.select_for_update().db)

    def __iter__(self) -> Iterator[M]:
        raise TypeError(
            "double_checked() is not iterated: a loop that is left early would leave its transaction open. "
            "Pass the loop's body instead: double_checked(queryset).each(body)."
        )

    def each(
        self,
        body: Callable[[M], object],
        *,
        on_locked: OnLocked = "skip",
        of: tuple[str, ...] = ("self",),
        limit: int | None = None,
        max_rounds: int = 1,
        wait_seconds: float = 2.0,
        progress: Progress | None = None,
    ) -> Report:
        """Call `body` with each row, locked and still meeting the criteria, in a transaction of its own.

        An exception in `body` rolls back that row alone and is kept in the report. Callbacks that it passes to
        `transaction.on_commit` run after that row's commit, outside any transaction. A row is handled once in a run.

        Args:
            on_locked: a row that another session holds is skipped (`skip`) or waited for (`wait`). `report` skips it
                with NOWAIT, by which PostgreSQL tells it apart from a row that is already done.
            of: the tables whose rows are locked, as in `select_for_update`.
            limit: the most rows to handle.
            max_rounds: with 1, held rows are left to the next run; with more, rounds follow until the outer query finds
                nothing. `UNTIL_EMPTY` is a sensible bound.
            wait_seconds: the longest wait for one row, with `wait`.
            progress: called after each candidate with the report so far; False ends the run.

        Raises RuntimeError inside `atomic()`, and NotSupportedError at an isolation level above READ COMMITTED. An
        error of the inner query ends the run, because it would fail for every row.
        """
        refuse_open_transaction(self.queryset.db)
        refuse_text(of)
        run = _Run(self.queryset, body, on_locked, of, limit, max_rounds, wait_seconds, progress)
        with counting_queries(self.queryset.db, run.report):
            run.go()
        return run.report


@dataclass
class _Run(Generic[M]):
    queryset: "models.QuerySet[M]"
    body: Callable[[M], object]
    on_locked: OnLocked
    of: tuple[str, ...]
    limit: int | None
    max_rounds: int
    wait_seconds: float
    progress: Progress | None
    report: Report = field(default_factory=Report)
    lost: set[Any] = field(default_factory=set)  # races in this round
    is_stopped: bool = False
    is_isolation_checked: bool = False

    def __post_init__(self) -> None:
        self.needs_third_check = reads_other_tables(self.queryset.query)

    @property
    def is_over(self) -> bool:
        return self.is_stopped or (self.limit is not None and self.report.handled >= self.limit)

    def go(self) -> None:
        """Run rounds until the outer query finds nothing, at most `max_rounds`."""
        pause, longest = PAUSE_SECONDS
        while self._round() and not self.is_over and self.report.rounds < self.max_rounds:
            if self.lost:
                time.sleep(pause)
                pause = min(2 * pause, longest)
        self._tell_locked_from_done()

    def _round(self) -> bool:
        """Go once through the candidates; False when this run had already handled all of them."""
        self.report.rounds += 1
        self.lost = set()
        handled_before, after, patience = self.report.handled, None, LOST_IN_A_ROW
        while not self.is_over:
            handled, chunk = self.report.handled, self._candidates(after)
            fresh = [key for key in dict.fromkeys(chunk) if self._is_fresh(key)]  # a join repeats keys
            if not self._walk(fresh, patience):  # read the chunk again
                # If reading again does not help, another session holds many rows for long.
                patience = LOST_IN_A_ROW if self.report.handled > handled else 2 * patience
            elif len(chunk) == CHUNK:
                after, patience = chunk[-1], LOST_IN_A_ROW
            else:
                break
        return bool(self.lost) or self.report.handled > handled_before

    def _candidates(self, after: Any) -> list[Any]:
        """The outer query, unlocked: keys in order, after `after`."""
        keys = self.queryset.order_by("pk").values_list("pk", flat=True)
        if after is not None:
            keys = keys.filter(pk__gt=after)
        return list(keys[:CHUNK])

    def _is_fresh(self, key: Any) -> bool:
        return key not in self.lost and self.report.outcomes.get(key) not in (Outcome.DONE, Outcome.FAILED)

    def _walk(self, keys: list[Any], patience: int) -> bool:
        """Handle `keys` from a random place, and move to another place after each lost race.

        So several processes do not follow each other through one list. False after `patience` lost races in a row: the
        list is stale.
        """
        place, lost = choose_place(keys), 0
        while keys and not self.is_over:
            key = keys.pop(place % len(keys))
            if self._handle(key):
                lost = 0
            else:
                lost += 1
                place = choose_place(keys)
            self.is_stopped = self.progress is not None and self.progress(self.report) is False
            if lost == patience:
                return False
        return True

    def _handle(self, key: Any) -> bool:
        """Handle one candidate; False when another session won the race for it."""
        row = None
        try:
            with transaction.atomic(using=self.queryset.db, durable=True):
                row = self._lock(key)
                if row is not None:
                    with _around.get()(row):
                        self.body(row)
        except Exception as error:
            if row is None and not is_lock_not_available(error):
                raise
            if row is not None:
                self.report.note(key, Outcome.FAILED)
                self.report.errors[key] = error
                logger.warning("row %s of %s failed: %s", key, self.queryset.model._meta.label, error, exc_info=error)
                return True
        if row is None:
            self.lost.add(key)
            self.report.lost_races += 1
        self.report.note(key, Outcome.LOCKED if row is None else Outcome.DONE)
        return row is not None

    def _lock(self, key: Any) -> M | None:
        """The row under its lock if it still meets the criteria; None when it does not, or when it was skipped."""
        if not self.is_isolation_checked:
            refuse_isolation(self.queryset.db)
            self.is_isolation_checked = True
        if self.on_locked == "wait":
            with connections[self.queryset.db].cursor() as cursor:
                cursor.execute(LIMIT_WAIT, {"limit": f"{int(self.wait_seconds * 1000)}ms"})
        candidate = self.queryset.order_by().filter(pk=key)
        row = self._locked(candidate)
        # The locking statement may have begun before another holder's commit: it read other tables as they were before.
        return candidate.first() if row is not None and self.needs_third_check else row

    def _locked(self, candidate: "models.QuerySet[M]") -> M | None:
        """The inner query: the same criteria for one row, under its lock."""
        how = self.on_locked
        try:
            return candidate.select_for_update(
                of=self.of, no_key=True, skip_locked=how == "skip", nowait=how == "report"
            ).first()
        except NotSupportedError as error:
            raise NotSupportedError(
                f"of={self.of} cannot be locked: {str(error).strip()}. Name only tables that have a row for "
                "each candidate, such as of=('self',)."
            ) from error

    def _tell_locked_from_done(self) -> None:
        """Mark skipped rows that no longer meet the criteria as done: SKIP LOCKED does not tell the two apart."""
        lost = self.report.keys(Outcome.LOCKED)
        for start in range(0, len(lost), CHUNK):
            keys = lost[start : start + CHUNK]
            left = set(self.queryset.order_by().filter(pk__in=keys).values_list("pk", flat=True))
            for key in keys:
                if key not in left:
                    self.report.note(key, Outcome.ALREADY_DONE)


def choose_place(keys: list[Any]) -> int:
    """A random position, so that processes spread over the list."""
    return random.randrange(len(keys)) if keys else 0  # noqa: S311  spreads processes, keeps no secret


def refuse_unlockable(queryset: Any) -> None:
    """Raise TypeError for anything but a queryset, NotSupportedError if PostgreSQL could not lock its rows."""
    if not isinstance(queryset, models.QuerySet):
        raise TypeError(f"Pass a QuerySet such as Order.objects.all(), not {queryset!r}.")
    query = queryset.query
    problem = (
        "it is sliced; give limit=… to each() instead" if query.is_sliced
        else f"it is a {query.combinator}; lock the rows of one query" if query.combinator
        else "it gives values, not model instances" if query.values_select or query.selected
        else "it is distinct, and PostgreSQL cannot lock such rows; use Exists() in a filter" if query.distinct
        else "it is grouped, and PostgreSQL cannot lock such rows; use a Subquery" if query.group_by is not None
        else "it locks its rows already; leave select_for_update() out, each() does it" if query.select_for_update
        else ""
    )  # fmt: skip
    if problem:
        raise NotSupportedError(f"The rows of this queryset cannot be locked: {problem}.")


def refuse_text(of: Any) -> None:
    """Raise TypeError for `of='self'`, which Django would read as the tables s, e, l and f."""
    if isinstance(of, str):
        raise TypeError(f"of must be a tuple of names: write of=({of!r},).")


def refuse_open_transaction(using: str) -> None:
    """Raise RuntimeError inside a transaction, except the one that a TestCase puts around each test.

    The error names ATOMIC_REQUESTS where that is the cause.
    """
    connection = connections[using]
    cause = "Autocommit is off: turn it on again with transaction.set_autocommit(True)."
    if connection.in_atomic_block:
        # Django refuses a durable block in any other but a TestCase's. This one sends nothing.
        with suppress(RuntimeError), transaction.atomic(using, savepoint=False, durable=True):
            return
        cause = "Move the call out of atomic(); in a task, run it on a worker whose --strategy is not pessimistic."
        if connection.settings_dict["ATOMIC_REQUESTS"]:
            cause = f"If ATOMIC_REQUESTS opened it, decorate the view with @transaction.non_atomic_requests. {cause}"
    elif connection.get_autocommit():
        return
    raise RuntimeError(f"This cannot run inside a transaction: every row would stay locked until it ends. {cause}")


def refuse_isolation(using: str) -> None:
    """Raise NotSupportedError above READ COMMITTED. It asks the session, whose default may come from the server."""
    with connections[using].cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        level = cursor.fetchone()[0]
    if level not in ("read committed", "read uncommitted"):  # to PostgreSQL they are the same
        raise NotSupportedError(
            f"A second check needs READ COMMITTED, and this connection runs at {level.upper()}: it would see what the "
            "first one saw. Set the database's isolation level to READ COMMITTED."
        )


def reads_other_tables(query: Query) -> bool:
    """True if the criteria use other tables, by a join or a subquery."""
    return len(query.alias_map) > 1 or any(isinstance(node, (Query, Subquery)) for node in _nodes(query.where))


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    if isinstance(expression, (Query, Subquery)):
        return
    for child in expression.get_source_expressions():
        if hasattr(child, "get_source_expressions"):
            yield from _nodes(child)
