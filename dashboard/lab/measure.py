"""What a run came to, by the word of the ledger and of the rows, not of the pattern."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row

from dashboard.lab.patterns.pattern import Pattern
from dashboard.lab.plan import Plan

# Each line has the wait since the line before: an account's tries stand between two effects, with waits of their own.
EFFECTS = """
WITH line AS (
    SELECT id, kind, worker, item, began, sum(wait_ms) OVER (PARTITION BY worker ORDER BY id) AS waited
    FROM lab_ledger WHERE worker >= 0
)
SELECT worker, item, began, waited - coalesce(lag(waited) OVER (PARTITION BY worker ORDER BY id), 0) AS wait_ms
FROM line WHERE kind = 'effect' ORDER BY began, id
"""
REMOTE = "SELECT count(*) - count(DISTINCT item) AS repeated FROM lab_ledger WHERE kind = 'remote'"
LOST = "SELECT count(*) AS lost FROM lab_ledger WHERE kind = 'lost'"
SPAN = """
SELECT coalesce(extract(epoch FROM max(coalesce(ended, began)) - min(began)), 0)::float8 AS seconds
FROM lab_ledger WHERE kind IN ('effect', 'attempt', 'remote')
"""
# The counters stand in every line and only grow, so each process's largest are its last.
COUNTERS = """
SELECT sum(lost_races)::int AS lost_races, sum(retries)::int AS retries, sum(queries)::int AS queries
FROM (SELECT max(lost_races) AS lost_races, max(retries) AS retries, max(queries) AS queries
      FROM lab_ledger WHERE worker >= 0 GROUP BY worker, process) AS last
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The numbers of one run; times in the unit of their name.

    Args:
        duplicates: effects beyond the first of each item.
        lost_updates: writes that were acknowledged and are not there.
        lost_work: results that were thrown away, and items whose effect took place but which are not called done.
        lost_races: candidates that were taken in vain.
        order_inversions: effects that began behind one of a later item.
        wait_ms_p50, wait_ms_p95: time in statements and locks for which one may have to wait, per effect.
        unprocessed: items without any effect when the run ended.
        repeated_calls: slow calls beyond the first of each item.
        may_repeat: how many effects the kills may have repeated in a pattern that does what it promises.
        blocked_samples: sessions of the run that waited for a lock, summed over all looks.
        stopped: why the run was ended, empty when it came to its own end.
        share: effects by worker.
        guarded: the same numbers of the same load with the guard that the pattern lacks, where it has such a part.
        waited_share: the part of all workers' time in which they were seen to wait for a lock, 0 to 1.
    """

    pattern: str
    items: int
    processed: int
    duplicates: int
    lost_updates: int
    lost_work: int
    lost_races: int
    order_inversions: int
    seconds: float
    items_per_second: float
    wait_ms_p50: float
    wait_ms_p95: float
    queries_per_item: float
    unprocessed: int
    retries: int
    repeated_calls: int
    kills: int
    may_repeat: int
    blocked_samples: int
    stopped: str = ""
    share: dict[int, int] = field(default_factory=dict)
    guarded: dict[str, Any] | None = None
    waited_share: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost or left, or done twice beyond what the kills explain."""
        lost = self.lost_updates or self.lost_work or self.unprocessed or self.stopped
        return self.duplicates <= self.may_repeat and not lost

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_clean": self.is_clean}


def measure(
    connection: psycopg.Connection,
    plan: Plan,
    pattern: Pattern,
    *,
    kills: int,
    looks: int,
    blocked_samples: int,
    stopped: str,
) -> Result:
    """Read the ledger and the rows of a run that is over; `connection` sees its schema alone.

    `blocked_samples` sessions waited for a lock in `looks` looks.
    """
    cursor, subject = connection.cursor(row_factory=dict_row), pattern.rows

    def one(statement: str) -> Any:
        return next(iter(cursor.execute(statement).fetchone().values()))  # type: ignore[union-attr]

    effects = cursor.execute(EFFECTS).fetchall()
    counters: dict[str, Any] = cursor.execute(COUNTERS).fetchone() or {}
    items = [effect["item"] for effect in effects]
    processed = set(items)
    done = {row["id"] for row in cursor.execute(subject.done).fetchall()}
    seconds = one(SPAN)
    waits = sorted(effect["wait_ms"] for effect in effects)
    return Result(
        pattern=plan.pattern,
        items=plan.items,
        processed=len(processed),
        duplicates=len(items) - len(processed),
        lost_updates=max(0, one(subject.told) - one(subject.kept)),
        lost_work=one(LOST) + len(processed - done),
        lost_races=counters["lost_races"] or 0,
        order_inversions=inversions(items),
        seconds=round(seconds, 3),
        items_per_second=round(len(processed) / seconds, 1) if seconds else 0.0,
        wait_ms_p50=percentile(waits, 0.5),
        wait_ms_p95=percentile(waits, 0.95),
        queries_per_item=round((counters["queries"] or 0) / len(processed), 2) if processed else 0.0,
        unprocessed=plan.items - len(processed),
        retries=counters["retries"] or 0,
        repeated_calls=one(REMOTE),
        kills=kills,
        may_repeat=kills * pattern.repeats,
        blocked_samples=blocked_samples,
        stopped=stopped,
        share=dict(sorted(Counter(effect["worker"] for effect in effects).items())),
        waited_share=round(min(1.0, blocked_samples / max(1, looks * plan.workers)), 3),
    )


def inversions(items: list[int]) -> int:
    """How many items began behind one that stands later in the line.

    >>> inversions([1, 2, 3]), inversions([2, 1, 3]), inversions([3, 1, 2])
    (0, 1, 2)
    """
    latest, found = 0, 0
    for item in items:
        found += item < latest
        latest = max(latest, item)
    return found


def percentile(ordered: list[float], share: float) -> float:
    """The value below which `share` of them lie; 0 when there are none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    3.0
    """
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2) if ordered else 0.0
