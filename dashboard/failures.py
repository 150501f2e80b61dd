"""Unsuccessful attempts by their fingerprint (tasks/models/task.py): for the page, the overview and its lines."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Self

from django.db import connection
from django.db.models import QuerySet

from dashboard import links
from tasks.models import Attempt
from tasks.operations.filters import InvalidFilter, Params, TaskFilter, given, parse_moment
from tasks.support import database
from tasks.support.database import fetch

# The newest tasks that FAILED or were CANCELLED, from their partial index; then only the FAILED ones among them.
WINDOW, GROUPED, GROUPS = 10_000, 2_000, 200
ATTEMPTS, LATEST = 500, 10
KINDS = 2_000  # fingerprints that are looked at
SHOWN = 50
PARTS = 30  # of the chosen time, in a trend
SAMPLE = 2_000  # characters at the end of a traceback, among them the message
SHORTEST = timedelta(minutes=1)
SORTS = NUMBER, LAST = "count", "last"
# The parameters of the page's address, by the field of its filter.
NAMES = {"since": "since", "until": "until", "text": "q", "queue": "queue", "release": "release", "sort": "sort"}

# Ordered by `number`: ordered by id, the planner would walk the primary key backwards to find the task.
FAILED_GROUPS = """
WITH newest AS MATERIALIZED (
    SELECT id, status, task_path, finished_at FROM tasks_task
    WHERE status IN ('FAILED', 'CANCELLED') ORDER BY id DESC LIMIT %(window)s::int
), failed AS MATERIALIZED (
    SELECT id, task_path, finished_at FROM newest WHERE status = 'FAILED' ORDER BY id DESC LIMIT %(grouped)s::int
)
SELECT failed.task_path, coalesce(last.exception_class, '') AS exception_class,
    coalesce(last.fingerprint, '') AS fingerprint, count(*) AS number,
    min(failed.finished_at) AS since, max(failed.finished_at) AS latest
FROM failed LEFT JOIN LATERAL (
    SELECT attempt.exception_class, attempt.fingerprint FROM tasks_attempt AS attempt
    WHERE attempt.task_id = failed.id AND attempt.outcome <> 'released'
    ORDER BY attempt.number DESC, attempt.id DESC LIMIT 1
) AS last ON true
GROUP BY 1, 2, 3 ORDER BY count(*) DESC, max(failed.finished_at) DESC LIMIT %(groups)s::int
"""

LATEST_FAILURES = """
WITH newest AS MATERIALIZED (
    SELECT task_id, exception_class, fingerprint, outcome, finished_at FROM tasks_attempt
    ORDER BY id DESC LIMIT %(attempts)s::int
)
SELECT task.task_path, newest.exception_class, newest.fingerprint, count(*) AS number, min(newest.finished_at) AS since,
    max(newest.finished_at) AS latest
FROM newest JOIN tasks_task AS task ON task.id = newest.task_id
WHERE newest.outcome <> 'released'
GROUP BY 1, 2, 3 ORDER BY max(newest.finished_at) DESC LIMIT %(latest)s::int
"""

# A loose scan over the fingerprints, and for each its attempts in the chosen time, all from one index.
KINDS_OF_FAILURE = """
WITH RECURSIVE known (fingerprint) AS (
    (SELECT fingerprint FROM tasks_attempt WHERE fingerprint > '' ORDER BY fingerprint LIMIT 1)
    UNION ALL
    SELECT (SELECT attempt.fingerprint FROM tasks_attempt AS attempt
            WHERE attempt.fingerprint > known.fingerprint ORDER BY attempt.fingerprint LIMIT 1)
    FROM known WHERE known.fingerprint IS NOT NULL
), kind AS (
    SELECT fingerprint FROM known WHERE fingerprint IS NOT NULL LIMIT %(kinds)s::int
), part AS MATERIALIZED (
    SELECT kind.fingerprint, part.* FROM kind CROSS JOIN LATERAL (
        SELECT date_bin(%(step)s::interval, attempt.finished_at, %(since)s::timestamptz) AS at, attempt.release,
            count(*) AS number, max(attempt.finished_at) AS latest
        FROM tasks_attempt AS attempt
        WHERE attempt.fingerprint = kind.fingerprint
          AND attempt.finished_at >= %(since)s::timestamptz AND attempt.finished_at < %(until)s::timestamptz
          AND (%(queue)s::text = '' OR attempt.queue_name = %(queue)s::text)
          AND (%(release)s::text = '' OR attempt.release = %(release)s::text)
        GROUP BY 1, 2
    ) AS part
    WHERE %(key)s::text = '' OR starts_with(kind.fingerprint, %(key)s::text)
), counted AS (
    SELECT fingerprint, sum(number)::bigint AS number, max(latest) AS latest, array_agg(at) AS places,
        array_agg(number) AS numbers, array_agg(DISTINCT release) FILTER (WHERE release <> '') AS releases
    FROM part GROUP BY fingerprint
)
SELECT task.task_path, sample.exception_class, counted.fingerprint, counted.number, first.since, counted.latest,
    counted.places, counted.numbers, coalesce(counted.releases, '{}') AS releases, sample.task_id, sample.ending,
    count(*) OVER () AS total
FROM counted CROSS JOIN LATERAL (
    SELECT attempt.task_id, attempt.exception_class, right(attempt.traceback, %(sample)s::int) AS ending
    FROM tasks_attempt AS attempt
    WHERE attempt.fingerprint = counted.fingerprint AND attempt.finished_at = counted.latest
      AND (%(queue)s::text = '' OR attempt.queue_name = %(queue)s::text)
      AND (%(release)s::text = '' OR attempt.release = %(release)s::text) LIMIT 1
) AS sample CROSS JOIN LATERAL (
    SELECT min(attempt.finished_at) AS since FROM tasks_attempt AS attempt
    WHERE attempt.fingerprint = counted.fingerprint
) AS first JOIN tasks_task AS task ON task.id = sample.task_id
WHERE strpos(lower(concat_ws(' ', task.task_path, sample.exception_class, counted.fingerprint)),
    lower(%(text)s::text)) > 0
ORDER BY CASE WHEN %(sort)s::text = 'count' THEN counted.number END DESC NULLS LAST, counted.latest DESC
LIMIT %(shown)s::int
"""

FINGERPRINT = """
SELECT fingerprint FROM tasks_attempt WHERE fingerprint > %(key)s::text ORDER BY fingerprint LIMIT 1
"""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Failures of one kind; `since` and `latest` in the database's clock."""

    task_path: str
    exception_class: str
    fingerprint: str
    number: int
    since: datetime
    latest: datetime

    @property
    def key(self) -> str:
        """The fingerprint's hash; empty if the attempt has none."""
        return self.fingerprint.partition(" ")[0]

    @property
    def name(self) -> str:
        """The hash, else task and exception."""
        return self.key or f"{self.task_path}:{self.exception_class}"

    @property
    def id(self) -> str:
        """A stable name for the page's element."""
        return links.element_id(self.name)

    @property
    def place(self) -> str:
        """The file and function; without them the outcome."""
        return self.fingerprint.partition(" ")[2]

    @property
    def error(self) -> str:
        return self.exception_class.rpartition(".")[2]

    @property
    def url(self) -> str:
        """The page of this kind; without a fingerprint, the tasks that failed this way."""
        if self.key:
            return links.page("admin:ops_failure", self.key)
        return links.listed(self.tasks)

    @property
    def tasks(self) -> TaskFilter:
        """The tasks that are FAILED in this way now."""
        if self.key:
            return TaskFilter(statuses=("FAILED",), failure=self.key)
        return TaskFilter(statuses=("FAILED",), task_paths=(self.task_path,), error=self.exception_class)


def failed_groups() -> list[Group]:
    """FAILED tasks by the failure of their latest attempt, the largest group first (newest GROUPED tasks)."""
    params = {"window": WINDOW, "grouped": GROUPED, "groups": GROUPS}
    return [Group(**row) for row in fetch(connection, FAILED_GROUPS, params)]


def latest_failures() -> list[Group]:
    """Failed attempts by kind, the latest first (newest ATTEMPTS attempts)."""
    params = {"attempts": ATTEMPTS, "latest": LATEST}
    return [Group(**row) for row in fetch(connection, LATEST_FAILURES, params)]


class Range(NamedTuple):
    """A chosen time, cut into PARTS parts of `step`."""

    since: datetime
    until: datetime

    @property
    def step(self) -> timedelta:
        return (self.until - self.since) / PARTS


@dataclass(frozen=True, kw_only=True)
class FailureFilter:
    """The choice of the page: a time, a part of it by queue and release, and a text in task, exception or place.

    `since`, `until`: an age like 24h or a time; without `until` the time ends now. `key`: a fingerprint's hash.
    """

    since: str = "24h"
    until: str = ""
    text: str = ""
    queue: str = ""
    release: str = ""
    sort: str = LAST
    key: str = ""

    @classmethod
    def from_params(cls, params: Params, **own: str) -> Self:
        """Read a URL's query. Raises InvalidFilter."""
        read = {field: next(iter(given(params, name)), "").strip() for field, name in NAMES.items()}
        chosen = cls(**{field: value for field, value in read.items() if value}, **own)
        if chosen.sort not in SORTS:
            raise InvalidFilter(f"Failures cannot be sorted by {chosen.sort!r}: choose one of {', '.join(SORTS)}.")
        time = chosen.time()
        if time.until - time.since < SHORTEST:
            raise InvalidFilter("The chosen time must be at least one minute long, and end after it begins.")
        return chosen

    def as_params(self, **changed: str) -> list[tuple[str, str]]:
        """The pairs of a URL's query, some of them changed; what is as ever is left away."""
        fields = {**asdict(self), **changed}
        return [(name, fields[field]) for field, name in NAMES.items() if fields[field] != getattr(type(self), field)]

    def time(self) -> Range:
        """The chosen time, by the database's clock."""
        now = database.now(connection)
        since, until = (parse_moment(text) or timedelta() for text in (self.since, self.until))
        return Range(*(now - at if isinstance(at, timedelta) else at for at in (since, until)))


@dataclass(frozen=True, kw_only=True)
class Kind(Group):
    """One kind of failure in the chosen time; `since` is its first attempt on record, whatever the time.

    `trend`: attempts in each part of the time. `total`: kinds that match, of which SHOWN are read.
    """

    trend: tuple[int, ...]
    releases: tuple[str, ...]
    task_id: int
    message: Attempt
    total: int


def kinds(chosen: FailureFilter) -> list[Kind]:
    """The kinds of failure in the chosen time: the latest first, or the most frequent."""
    time = chosen.time()
    params = {
        **asdict(chosen),
        "since": time.since,
        "until": time.until,
        "step": time.step,
        "kinds": KINDS,
        "sample": SAMPLE,
        "shown": SHOWN,
    }
    return [kind_of(row, time) for row in fetch(connection, KINDS_OF_FAILURE, params)]


def kind_of(row: dict[str, Any], time: Range) -> Kind:
    message = Attempt(exception_class=row["exception_class"], traceback=row.pop("ending"))
    trend = trend_of(zip(row.pop("places"), row.pop("numbers"), strict=True), time)
    releases = tuple(sorted(row.pop("releases")))
    return Kind(trend=trend, releases=releases, message=message, **row)


def trend_of(counted: Iterable[tuple[datetime, int]], time: Range) -> tuple[int, ...]:
    """The counts of each part of the time; a part without attempts is 0."""
    trend = [0] * PARTS
    for at, number in counted:
        trend[min(PARTS - 1, round((at - time.since) / time.step))] += number
    return tuple(trend)


def fingerprint_of(key: str) -> str:
    """The fingerprint with this hash; empty if no attempt has it."""
    found = fetch(connection, FINGERPRINT, {"key": f"{key} "})
    return found[0]["fingerprint"] if found and found[0]["fingerprint"].startswith(f"{key} ") else ""


@dataclass(frozen=True)
class AttemptsOf:
    """The attempts of one fingerprint, as the search through a table of rows takes them."""

    fingerprint: str

    def queryset(self) -> QuerySet[Attempt]:
        return Attempt.objects.filter(fingerprint=self.fingerprint).select_related("task")

    def as_params(self) -> list[tuple[str, str]]:
        return []

    def shows(self, row: Any, /) -> bool:
        return True
