"""Spans of work by worker and item, for the chart of a run."""

from dataclasses import dataclass
from typing import Any, Self

from tasks.database import Connection, fetch

MOST = 1500
MOST_LIVE = 300  # it is drawn again each second

# The first effects of a run are the most telling, because all processes meet there. The numbers count all effects.
SPANS = """
WITH start AS (SELECT min(began) AS at FROM lab_ledger WHERE kind IN ('effect', 'attempt', 'remote', 'start'))
SELECT worker, item, kind, extract(epoch FROM began - start.at)::float8 AS began,
    extract(epoch FROM coalesce(ended, began) - start.at)::float8 AS ended, wait_ms / 1000 AS wait,
    kind = 'effect' AND row_number() OVER (PARTITION BY kind, item ORDER BY id) > 1 AS is_duplicate
FROM lab_ledger, start
WHERE kind = ANY(%(kinds)s::text[]) ORDER BY id LIMIT %(most)s::int
"""
# The latest spans of a running run.
LATEST = """
WITH start AS (SELECT min(began) AS at FROM lab_ledger WHERE kind IN ('effect', 'attempt', 'remote', 'start')),
latest AS (
    SELECT * FROM lab_ledger WHERE kind = ANY(%(kinds)s::text[]) ORDER BY id DESC LIMIT %(most)s::int
)
SELECT worker, item, kind, extract(epoch FROM began - start.at)::float8 AS began,
    extract(epoch FROM coalesce(ended, clock_timestamp()) - start.at)::float8 AS ended, wait_ms / 1000 AS wait,
    kind = 'effect' AND EXISTS (
        SELECT FROM lab_ledger AS earlier
        WHERE earlier.kind = 'effect' AND earlier.item = latest.item AND earlier.id < latest.id
    ) AS is_duplicate
FROM latest, start ORDER BY id
"""


@dataclass(frozen=True)
class Span:
    """A stretch of a worker's time; seconds from the start of the run. `wait`: seconds waited before it."""

    worker: int
    item: int | None
    kind: str
    began: float
    ended: float
    wait: float
    is_duplicate: bool

    @classmethod
    def from_json(cls, values: list[Any]) -> Self:
        return cls(*values)

    def as_json(self) -> list[Any]:
        """A short list, because a column holds many of them."""
        times = [round(value, 4) for value in (self.began, self.ended, self.wait)]
        return [self.worker, self.item, self.kind, *times, self.is_duplicate]


def read(connection: Connection, *, has_attempts: bool) -> list[Span]:
    """The first spans of a run, and all kills; `connection` sees only its schema.

    `has_attempts`: attempts are recorded apart from their success, as with the accounts.
    """
    work = {"kinds": [kind_of_work(has_attempts)], "most": MOST}
    kills = {"kinds": ["kill"], "most": MOST}
    return [Span(**row) for params in (work, kills) for row in fetch(connection, SPANS, params)]


def latest(connection: Connection, *, has_attempts: bool) -> list[Span]:
    """The latest spans and kills of a running run; an open span ends now."""
    params = {"kinds": [kind_of_work(has_attempts), "kill"], "most": MOST_LIVE}
    return [Span(**row) for row in fetch(connection, LATEST, params)]


def kind_of_work(has_attempts: bool) -> str:
    return "attempt" if has_attempts else "effect"
