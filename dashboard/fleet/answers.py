"""Read what an installation answers: every text from afar is one line and short, every number in its range.

Fields that we do not know are ignored, because installations are upgraded one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from tasks.panels import Severity
from tasks.support.reading import clipped, one_line

SUMMARY, ATTENTION, FIND = "/api/v1/summary", "/api/v1/attention", "/api/v1/find"
LONGEST_WORD, LONGEST_TEXT, LONGEST_URL = 100, 300, 2000
MOST_LINES, MOST_FOUND = 100, 20
MINUTES = 60
BIGGEST = 2**63
HEALTHS = ("critical", "warning", "ok")

T = TypeVar("T")


class Garbage(ValueError):
    """The answer has not the shape of one; the message names the field."""


@dataclass(frozen=True)
class Queue:
    """The numbers of one queue."""

    name: str
    ready: int
    oldest_seconds: float | None
    running: int
    failed: int

    @classmethod
    def of(cls, value: Any) -> Self:
        return cls(
            text(value, "name"),
            number(value, "ready"),
            seconds(value, "oldest_seconds"),
            number(value, "running"),
            number(value, "failed"),
        )


@dataclass(frozen=True)
class Summary:
    """The state of one installation. `throughput`: completed tasks in each of the last 60 minutes, oldest first."""

    version: str
    database: str
    server_version: str
    health: str
    critical: int
    warnings: int
    queues: tuple[Queue, ...]
    throughput: tuple[int, ...]
    alive: int
    workers: int
    blocked: int

    @classmethod
    def of(cls, value: Any) -> Self:
        """Raises Garbage."""
        database, severity, workers = (field(value, name) for name in ("database", "severity", "workers"))
        health = text(value, "health")
        if health not in HEALTHS:
            raise Garbage("health")
        throughput = entries(value, "throughput", whole)
        if len(throughput) != MINUTES:
            raise Garbage("throughput")
        return cls(
            version=text(value, "version"),
            database=text(database, "name"),
            server_version=text(database, "server_version"),
            health=health,
            critical=number(severity, "critical"),
            warnings=number(severity, "warnings"),
            queues=entries(value, "queues", Queue.of),
            throughput=throughput,
            alive=number(workers, "alive"),
            workers=number(workers, "of"),
            blocked=number(value, "blocked_sessions"),
        )

    @property
    def ready(self) -> int:
        return sum(queue.ready for queue in self.queues)

    @property
    def running(self) -> int:
        return sum(queue.running for queue in self.queues)

    @property
    def failed(self) -> int:
        return sum(queue.failed for queue in self.queues)

    @property
    def oldest_seconds(self) -> float | None:
        return max((queue.oldest_seconds for queue in self.queues if queue.oldest_seconds is not None), default=None)


@dataclass(frozen=True)
class Line:
    """One line of *Needs attention*. `url`: its page, on the installation itself."""

    text: str
    severity: Severity
    since: datetime | None
    url: str


def lines_of(value: Any, base: str) -> tuple[Line, ...]:
    """The lines that nobody has acknowledged; a severity that we do not know is one that a person must look at."""

    def line(item: Any) -> Line | None:
        if field(item, "acknowledged", None):
            return None
        severity = Severity.__members__.get(text(item, "severity").upper(), Severity.LOSING)
        return Line(text(item, "text", LONGEST_TEXT), severity, moment(item, "since"), page(item, base))

    return tuple(filter(None, entries(value, "items", line)))[:MOST_LINES]


@dataclass(frozen=True)
class Match:
    """A task, worker or key that a search found, with its page on the installation itself."""

    text: str
    url: str


def matches_of(value: Any, base: str) -> tuple[Match, ...]:
    found = entries(value, "items", lambda item: Match(text(item, "text", LONGEST_TEXT), page(item, base)))
    return found[:MOST_FOUND]


def field(value: Any, name: str, *default: Any) -> Any:
    """The field of a JSON object. Raises Garbage if it is no object, or has no such field and there is no default."""
    if not isinstance(value, dict) or (name not in value and not default):
        raise Garbage(name)
    return value.get(name, *default)


def entries(value: Any, name: str, read: Callable[[Any], T]) -> tuple[T, ...]:
    found = field(value, name)
    if not isinstance(found, list):
        raise Garbage(name)
    return tuple(map(read, found))


def text(value: Any, name: str, longest: int = LONGEST_WORD) -> str:
    found = field(value, name)
    if not isinstance(found, str):
        raise Garbage(name)
    return clipped(one_line(found[: longest + 1]), longest)


def whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < BIGGEST:
        raise Garbage("number")
    return int(value)


def number(value: Any, name: str) -> int:
    try:
        return whole(field(value, name))
    except Garbage as error:
        raise Garbage(name) from error


def seconds(value: Any, name: str) -> float | None:
    found = field(value, name)
    if found is None:
        return None
    if type(found) not in (int, float) or not 0 <= found < BIGGEST:
        raise Garbage(name)
    return float(found)


def moment(value: Any, name: str) -> datetime | None:
    found = field(value, name)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(found).astimezone(UTC)
    except (TypeError, ValueError, OverflowError) as error:
        raise Garbage(name) from error


def page(value: Any, base: str) -> str:
    """The address of a path on the installation, or of its admin without one. It never leads to another host."""
    found = field(value, "url", None)
    is_path = isinstance(found, str) and found.startswith("/") and len(found) <= LONGEST_URL and found.isprintable()
    parts = urlsplit(base)
    return f"{parts.scheme}://{parts.netloc}{found}" if is_path else f"{base}/admin/"
