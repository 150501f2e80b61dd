"""The way past dead rows: what a claimer remembers when the way from the beginning of the line was long.

Rows that are done stay in the index until VACUUM, and the beginning of the line is where they gather; a transaction
that is open for hours keeps even VACUUM away. Beside one, 30,000 claims of one task made the next take 2.8 ms instead
of 0.2. So after two slow claims in a row the next ones go on behind the last tasks, for a time that is counted in such
claims: the line is walked from its beginning again soon enough for a task that came in between, by its priority or its
time. When a slow walk found nothing, the next claim may go on behind it however late it comes: what a worker is woken
for stands there. A claim of many tasks is reason enough by itself: who drains a long queue leaves dead rows behind.

Where the walk saw nothing due but the tasks of one queue and priority, it is itself what is saved, for the moment in
which the keys rest: beside 100,000 scheduled tasks a claim of one took 0.19 ms instead of 0.31.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tasks.database import Connection, fetch

if TYPE_CHECKING:
    from tasks.claimer import Claim

SLOW_SECONDS = 0.000_5
SECONDS_PER_TASK = 0.000_05  # what a row costs by itself, amply
TIMES = 10  # as long as so many claims from the beginning,
MOST_SECONDS = 5.0  # and no longer
MANY = 200  # in one claim: only tasks that end within a moment are claimed so many at a time
LARGE_BYTES = 200_000  # some 4,000 rows, dead or not
MOST_PLACES = 8
COMMIT_SECONDS = 1.0  # amply: a task that was enqueued before an empty walk and committed after it

# The part of a claim that finds its candidates, as `tasks.line` and `tasks.claims.LOCKED` do from the beginning.
# `age`: the seconds since a walk found nothing due, so that what others have taken since then is passed over too.
FOLLOWING = """
WITH behind AS MATERIALIZED (
    SELECT place.queue_name, place.priority, place.id, place.number,
        greatest(place.run_after, statement_timestamp() - make_interval(secs => %(age)s::float8)) AS run_after
    FROM unnest(%(queue_names)s::text[], %(priorities)s::smallint[], %(run_afters)s::timestamptz[], %(ids)s::bigint[])
        WITH ORDINALITY AS place (queue_name, priority, run_after, id, number)
    WHERE NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = place.queue_name AND tasks_queue.paused)
    ORDER BY place.number
), locked AS MATERIALIZED (
    SELECT due.* FROM behind CROSS JOIN LATERAL (
        SELECT task.id, task.task_path, task.attempt, task.max_attempts FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL
          AND task.queue_name = behind.queue_name AND task.priority = behind.priority
          AND (task.run_after, task.id) > (behind.run_after, behind.id)
          AND task.run_after <= statement_timestamp()
        ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int) FOR NO KEY UPDATE SKIP LOCKED) AS due
    LIMIT %(limit)s::int
)"""

SIZE = "SELECT coalesce(pg_relation_size(to_regclass('tasks_task_claim')), 0) AS size"


@dataclass(frozen=True, slots=True)
class Place:
    """The last task without a key that was taken of a queue and priority. `run_after` is PostgreSQL's text."""

    queue_name: str
    priority: int
    run_after: str
    id: int


@dataclass(frozen=True, slots=True)
class Shortcut:
    """Where the next claims begin, in their order, until a moment by `time.monotonic()`.

    `empty_at`: when a walk found nothing due; then one claim may take it, whenever it comes.
    """

    places: tuple[Place, ...]
    until: float
    empty_at: float | None = None

    @property
    def is_open(self) -> bool:
        return time.monotonic() < self.until

    def params(self) -> dict[str, Any]:
        """What FOLLOWING takes, but for its limit."""
        return {
            "queue_names": [place.queue_name for place in self.places],
            "priorities": [place.priority for place in self.places],
            "run_afters": [place.run_after for place in self.places],
            "ids": [place.id for place in self.places],
            "age": None if self.empty_at is None else time.monotonic() - self.empty_at + COMMIT_SECONDS,
        }

    def behind(self, place: Place) -> "Shortcut | None":
        """As long as this one, behind what was taken by it; None when one claim was all that it was for."""
        if self.empty_at is not None:
            return None
        places = (place if _pair(place) == _pair(other) else other for other in self.places)
        return replace(self, places=tuple(places))


def last_place(taken: Sequence["Claim"]) -> Place | None:
    """Where a claim ended; None when it took no task without a key."""
    last = next((claim for claim in reversed(taken) if claim.ordering_key is None), None)
    return Place(last.queue_name, last.priority, last.run_after, last.id) if last else None


def remember(places: Iterable[Place], last: Place) -> tuple[Place, ...]:
    """The places of the queues and priorities that were met last, `last` among them, at most so many."""
    others = [place for place in places if _pair(place) != _pair(last)]
    return (*others, last)[-MOST_PLACES:]


def of_narrow_line(first: "Claim", until: float) -> Shortcut:
    """All that was due stands with this task: as long as the keys rest, the other queues and priorities do too."""
    return Shortcut((Place(first.queue_name, first.priority, "-infinity", 0),), until)


def is_slow(taken: Sequence["Claim"], seconds: float) -> bool:
    """True if a claim from the beginning of the line took longer than these tasks account for."""
    return seconds > SLOW_SECONDS + SECONDS_PER_TASK * len(taken)


def beginning_at(
    connection: Connection, places: tuple[Place, ...], seconds: float, *, is_empty: bool
) -> Shortcut | None:
    """Remember these places after a claim from the beginning of the line that took so many seconds.

    None where the index is small: then the machine was busy, and the line is kept to strictly.
    """
    if not places or fetch(connection, SIZE)[0]["size"] < LARGE_BYTES:
        return None
    now = time.monotonic()
    if is_empty:
        return Shortcut(places, math.inf, empty_at=now)
    return Shortcut(places, now + min(TIMES * seconds, MOST_SECONDS))


def _pair(place: Place) -> tuple[str, int]:
    return place.queue_name, place.priority
