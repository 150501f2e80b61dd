"""The report of a run that sends e-mails."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from tasks.locking.report import SHOWN, Outcome, Report, describe


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
