"""Preconditions for locking rows one by one; every refusal says why and what to do instead."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.db import NotSupportedError, connections, models, transaction
from django.db.models.expressions import Subquery
from django.db.models.sql import Query


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
            f"A second look needs READ COMMITTED, and this connection runs at {level.upper()}: it would see what the "
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


SHOWN = 100


class Outcome(StrEnum):
    """The outcome of one candidate."""

    DONE = "done"
    FAILED = "failed"  # its body raised; what it wrote is rolled back
    ALREADY_DONE = "already_done"  # it no longer met the criteria when its turn came
    LOCKED = "skipped_locked"  # it still meets the criteria, but another session held it


@dataclass
class Report:
    """The result of one run; each row counts once, under its latest outcome.

    `errors` holds the exception of each row whose body raised. `lost_races` counts transactions that found no row to
    handle. `queries` counts the statements sent, the body's included, BEGIN and COMMIT excluded.
    """

    outcomes: dict[Any, Outcome] = field(default_factory=dict)
    errors: dict[Any, Exception] = field(default_factory=dict)
    rounds: int = 0
    queries: int = 0
    lost_races: int = 0
    _counts: Counter[Outcome] = field(default_factory=Counter, repr=False)

    def note(self, key: Any, outcome: Outcome) -> None:
        """Set the row's outcome, replacing an earlier one."""
        if key in self.outcomes:
            self._counts[self.outcomes[key]] -= 1
        self.outcomes[key] = outcome
        self._counts[outcome] += 1

    def keys(self, outcome: Outcome) -> list[Any]:
        """The rows with this outcome, in the order in which they came."""
        return [key for key, noted in self.outcomes.items() if noted is outcome]

    @property
    def candidates(self) -> int:
        return len(self.outcomes)

    @property
    def done(self) -> int:
        return self._counts[Outcome.DONE]

    @property
    def failed(self) -> int:
        return self._counts[Outcome.FAILED]

    @property
    def already_done(self) -> int:
        return self._counts[Outcome.ALREADY_DONE]

    @property
    def skipped_locked(self) -> int:
        return self._counts[Outcome.LOCKED]

    @property
    def handled(self) -> int:
        """Rows whose body was called."""
        return self.done + self.failed

    @property
    def locked(self) -> list[Any]:
        """Rows that were skipped because another session held them."""
        return self.keys(Outcome.LOCKED)

    @property
    def problems(self) -> list[str]:
        """One line for each row that failed."""
        return [f"Row {key}: {describe(error)}." for key, error in self.errors.items()]

    @property
    def failure(self) -> str:
        """The error message that ends a command, or an empty text."""
        if not self.failed:
            return ""
        return f"{self.failed} failed; what they wrote was rolled back, and the next run tries them again."

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON, with at most the first hundred errors."""
        return {
            "candidates": self.candidates,
            "done": self.done,
            "skipped_locked": self.skipped_locked,
            "already_done": self.already_done,
            "failed": self.failed,
            "rounds": self.rounds,
            "queries": self.queries,
            "failures": [
                {"id": plain(key), "error": describe(error)} for key, error in list(self.errors.items())[:SHOWN]
            ],
        }

    def __str__(self) -> str:
        return (
            f"{self.candidates} found: {self.done} done, {self.skipped_locked} left to whoever holds them, "
            f"{self.already_done} done by others, {self.failed} failed."
        )


def plain(key: Any) -> int | str:
    """A primary key for JSON."""
    return key if isinstance(key, int) else str(key)


def describe(error: Exception) -> str:
    """The error's type and message, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


@contextmanager
def counting_queries(using: str, report: Report) -> Iterator[None]:
    """Count every statement sent to the database `using` within the block in the report."""

    def count(execute: Callable[..., Any], *args: Any) -> Any:
        report.queries += 1
        return execute(*args)

    with connections[using].execute_wrapper(count):
        yield
