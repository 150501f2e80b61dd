"""The report of a run over rows: the outcome of each candidate, and the numbers of all."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.db import connections

SHOWN = 100  # errors in JSON


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
