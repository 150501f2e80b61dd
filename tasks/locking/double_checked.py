"""Double-checked locking over rows: look without a lock, then lock one row and look again.

The pattern is Luke Plant's (patterns, system A): several processes may look for work at the same moment, and the table
is important and must be locked as little as possible. Everything runs outside any transaction; the outer query takes no
lock; each candidate gets a short transaction of its own, in which the same criteria are asked again of the locked row.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from django.db import NotSupportedError, OperationalError, connections, models, transaction
from django.db.models.query import ModelIterable

from tasks.locking.errors import is_lock_not_available

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=models.Model)
OnLocked = Literal["skip", "report", "wait"]

CHUNK = 200
LOST_IN_A_ROW = 3  # then the candidates are read again: somebody is going down the same list
ROUND_PAUSE_SECONDS = 0.05


@dataclass
class Report:
    """What one run did. `failed` holds the error of each row whose body raised, `locked` the keys of rows that somebody
    else held; `already_done` counts rows that no longer met the criteria once they were locked.
    """

    candidates: int = 0
    done: int = 0
    already_done: int = 0
    rounds: int = 0
    queries: int = 0
    locked: list[Any] = field(default_factory=list)
    failed: dict[Any, Exception] = field(default_factory=dict)

    @property
    def skipped_locked(self) -> int:
        return len(self.locked)

    @property
    def lost_races(self) -> int:
        """Candidates for which a transaction was opened in vain."""
        return self.already_done + self.skipped_locked


def double_checked(queryset: "models.QuerySet[M]") -> "DoubleChecked[M]":
    """The rows that meet the criteria, for `each(body)` to handle one by one under their lock.

    The criteria are those of `queryset`, written once and asked twice. It may filter, exclude, annotate and
    select_related; it may not be sliced, combined, distinct, grouped, or give anything but model instances.
    Raises NotSupportedError where PostgreSQL could not lock its rows.
    """
    _refuse_unlockable(queryset)
    return DoubleChecked(queryset)


class DoubleChecked(Generic[M]):
    """A queryset whose rows are locked and asked again one by one."""

    def __init__(self, queryset: "models.QuerySet[M]") -> None:
        self.queryset = queryset
        self.using = queryset.db

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
        progress: Callable[[Report], None] | None = None,
    ) -> Report:
        """Call `body` with each row, locked and still meeting the criteria, in a transaction of its own.

        An exception in `body` rolls back that row alone and is kept in the report. A row that somebody else holds is
        skipped and counted (`skip`), reported at once without waiting (`report`: NOWAIT), or waited for up to
        `wait_seconds` (`wait`). With `skip` a run may end without having handled every row: run it again later, or
        give `max_rounds` > 1 to go round until the outer query comes up empty. At most `limit` rows are handled.

        Raises RuntimeError inside `atomic()`, and NotSupportedError at an isolation level above READ COMMITTED, where
        the second look would see what the first one saw.
        """
        self._refuse_open_transaction()
        run = _Run(self.queryset, body, on_locked, of, wait_seconds, limit, progress)
        with _counting_queries(self.using, run.report):
            for number in range(max_rounds):
                if number and run.report.locked:
                    time.sleep(ROUND_PAUSE_SECONDS)
                run.report.rounds += 1
                if not run.round() or run.is_full:
                    break
        return run.report

    def _refuse_open_transaction(self) -> None:
        """As `atomic(durable=True)` does, sparing the transaction that a TestCase puts around each test."""
        connection = connections[self.using]
        if not connection.in_atomic_block or connection.atomic_blocks[-1]._from_testcase:
            return
        cause = (
            "ATOMIC_REQUESTS opened it: decorate the view with @transaction.non_atomic_requests."
            if connection.settings_dict["ATOMIC_REQUESTS"] and len(connection.atomic_blocks) == 1
            else "Move the call out of atomic()."
        )
        raise RuntimeError(
            "double_checked() cannot run inside a transaction: every row would stay locked until it ends. " + cause
        )


class _Run(Generic[M]):
    """The state of one call of `each`."""

    def __init__(
        self,
        queryset: "models.QuerySet[M]",
        body: Callable[[M], object],
        on_locked: OnLocked,
        of: tuple[str, ...],
        wait_seconds: float,
        limit: int | None,
        progress: Callable[[Report], None] | None,
    ) -> None:
        self.queryset = queryset
        self.using = queryset.db
        self.body = body
        self.on_locked = on_locked
        self.of = of
        self.wait_seconds = wait_seconds
        self.limit = limit
        self.progress = progress
        self.report = Report()
        self.seen: set[Any] = set()
        self.is_isolation_checked = False

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.report.done >= self.limit

    def round(self) -> int:
        """Once through the candidates; how many there were."""
        met = 0
        self.report.locked.clear()
        self.seen = set(self.report.failed)
        after: Any = None
        while not self.is_full:
            chunk = self._candidates(after)
            if not chunk:
                break
            met += len(chunk)
            after = self._walk(chunk, after)
        return met

    def _candidates(self, after: Any) -> list[Any]:
        """The outer query, unlocked: keys in order, from `after` on."""
        queryset = self.queryset.order_by("pk").values_list("pk", flat=True)
        if after is not None:
            queryset = queryset.filter(pk__gt=after)
        return list(queryset[:CHUNK])

    def _walk(self, chunk: list[Any], after: Any) -> Any:
        """Through the chunk from a place of our own, so that several processes do not chase each other down one list.

        Gives the key after which to read on; an earlier one when the list has become stale.
        """
        start = random.randrange(len(chunk))  # noqa: S311  spreads processes, keeps no secret
        lost = 0
        for key in (*chunk[start:], *chunk[:start]):
            if key in self.seen:
                continue
            if self.is_full:
                return after
            self.seen.add(key)
            self.report.candidates += 1
            lost = 0 if self._handle(key) else lost + 1
            if self.progress:
                self.progress(self.report)
            if lost == LOST_IN_A_ROW:
                return after
        return chunk[-1]

    def _handle(self, key: Any) -> bool:
        """One candidate; False when the race for it was lost."""
        try:
            return self._lock_and_call(key)
        except Exception as error:  # noqa: BLE001  whatever the body raises is that row's outcome, kept in the report
            if self.on_locked != "skip" and is_lock_not_available(error):
                self.report.locked.append(key)
                return False
            self._note_failure(key, error)
            return True

    def _lock_and_call(self, key: Any) -> bool:
        with transaction.atomic(using=self.using, durable=True):
            self._prepare_transaction()
            row = self._locked(key).first()
            if row is not None:
                self.body(row)
        if row is None:
            self._note_lost_race(key)
            return False
        self.report.done += 1
        return True

    def _prepare_transaction(self) -> None:
        with connections[self.using].cursor() as cursor:
            if not self.is_isolation_checked:
                cursor.execute("SHOW transaction_isolation")
                self._refuse_isolation(cursor.fetchone()[0])
            if self.on_locked == "wait":
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{int(self.wait_seconds * 1000)}ms"])

    def _refuse_isolation(self, level: str) -> None:
        if level != "read committed":
            raise NotSupportedError(
                f"double_checked() needs READ COMMITTED, and this connection runs at {level.upper()}: the second "
                "look would see what the first one saw. Set the database's isolation level to READ COMMITTED."
            )
        self.is_isolation_checked = True

    def _locked(self, key: Any) -> "models.QuerySet[M]":
        """The inner query: the same criteria, of this one row, under its lock."""
        return (
            self.queryset.order_by()
            .filter(pk=key)
            .select_for_update(
                of=self.of, no_key=True, skip_locked=self.on_locked == "skip", nowait=self.on_locked == "report"
            )
        )

    def _note_lost_race(self, key: Any) -> None:
        """Nothing came back: somebody holds the row, or it does not meet the criteria any more."""
        if self.on_locked == "skip" and self.queryset.order_by().filter(pk=key).exists():
            self.report.locked.append(key)
        else:
            self.report.already_done += 1

    def _note_failure(self, key: Any, error: Exception) -> None:
        """That row is rolled back and the next one goes on, unless the database itself is gone."""
        if isinstance(error, NotSupportedError):
            raise error
        if isinstance(error, OperationalError) and not connections[self.using].is_usable():
            raise error
        self.report.failed[key] = error
        logger.warning("row %s of %s failed: %s", key, self.queryset.model._meta.label, error, exc_info=error)


def _refuse_unlockable(queryset: "models.QuerySet[Any]") -> None:
    query = queryset.query
    problem = (
        "it is sliced; give limit=… to each() instead" if query.is_sliced
        else f"it is a {query.combinator}; lock the rows of one query" if query.combinator
        else "it gives values, not model instances" if queryset._iterable_class is not ModelIterable
        else "it is distinct, and PostgreSQL cannot lock such rows; use Exists() in a filter" if query.distinct
        else "it is grouped, and PostgreSQL cannot lock such rows; use a Subquery" if query.group_by
        else ""
    )  # fmt: skip
    if problem:
        raise NotSupportedError(f"double_checked() cannot lock the rows of this queryset: {problem}.")


@contextmanager
def _counting_queries(using: str, report: Report) -> Iterator[None]:
    def count(execute: Callable[..., Any], *args: Any) -> Any:
        report.queries += 1
        return execute(*args)

    with connections[using].execute_wrapper(count):
        yield
