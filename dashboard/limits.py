"""The limits of keys, for their page: what each allows, who holds its slots, how many wait, and when the next starts.

Keys are found by loose scans of the indexes over running and waiting tasks, so a page of them costs the same beside
ten million rows.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db import connection

from tasks.support.database import fetch

SHOWN = 50  # keys on a page
HOLDERS = 20  # running tasks that are named for each key
CAP = 1000  # running or waiting tasks that are counted for each key

# A key is in use while a task of it runs or waits.
KEYS = """
WITH RECURSIVE running (key) AS (
    (SELECT concurrency_key FROM tasks_task
     WHERE status = 'PROCESSING' AND concurrency_key > %(after)s::text ORDER BY concurrency_key LIMIT 1)
    UNION ALL
    SELECT (SELECT task.concurrency_key FROM tasks_task AS task
            WHERE task.status = 'PROCESSING' AND task.concurrency_key > running.key
            ORDER BY task.concurrency_key LIMIT 1)
    FROM running WHERE running.key IS NOT NULL
), waiting (key) AS (
    (SELECT concurrency_key FROM tasks_task
     WHERE status = 'READY' AND concurrency_key > %(after)s::text ORDER BY concurrency_key LIMIT 1)
    UNION ALL
    SELECT (SELECT task.concurrency_key FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.concurrency_key > waiting.key
            ORDER BY task.concurrency_key LIMIT 1)
    FROM waiting WHERE waiting.key IS NOT NULL
)
SELECT key FROM (
    (SELECT key FROM running WHERE strpos(lower(key), lower(%(text)s::text)) > 0 LIMIT %(most)s::int)
    UNION
    (SELECT key FROM waiting WHERE strpos(lower(key), lower(%(text)s::text)) > 0 LIMIT %(most)s::int)
    UNION
    (SELECT key FROM tasks_limit
     WHERE key > %(after)s::text AND (max_running IS NOT NULL OR rate IS NOT NULL OR paused)
       AND strpos(lower(key), lower(%(text)s::text)) > 0
     ORDER BY key LIMIT %(most)s::int)
) AS found
ORDER BY key LIMIT %(most)s::int
"""

# What tasks declare is read from one of the key's tasks, as all of one function declare the same. Its rate may have a
# key of its own, whose limit goes before the declared one.
LIMITS = """
SELECT wanted.key, held.max_running, held.rate, held.period_seconds,
    coalesce(held.paused, false) AS paused, held.paused_at, coalesce(held.paused_by, '') AS paused_by,
    sample.concurrency_limit AS declared_running, sample.id IS NOT NULL AS is_in_use, sample.rate_key,
    coalesce(rated.rate, sample.rate) AS declared_rate,
    coalesce(rated.period_seconds, sample.period_seconds) AS declared_period,
    running.number AS running, running.holders, waiting.number AS waiting, waiting.is_capped,
    bucket.due, bucket.next_at, statement_timestamp() AS now
FROM unnest(%(keys)s::text[]) WITH ORDINALITY AS wanted (key, place)
LEFT JOIN tasks_limit AS held ON held.key = wanted.key
LEFT JOIN LATERAL (
    (SELECT task.id, task.concurrency_limit, task.rate_key, task.rate, task.period_seconds FROM tasks_task AS task
     WHERE task.concurrency_key = wanted.key AND task.status = 'PROCESSING' LIMIT 1)
    UNION ALL
    (SELECT task.id, task.concurrency_limit, task.rate_key, task.rate, task.period_seconds FROM tasks_task AS task
     WHERE task.concurrency_key = wanted.key AND task.status = 'READY' LIMIT 1)
    LIMIT 1
) AS sample ON true
LEFT JOIN tasks_limit AS rated ON rated.key = sample.rate_key
CROSS JOIN LATERAL (
    SELECT count(*) AS number, coalesce(jsonb_agg(jsonb_build_array(
        holder.id, holder.task_path, holder.claimed_by, holder.started_at) ORDER BY holder.place)
        FILTER (WHERE holder.place <= %(holders)s::int), '[]') AS holders
    FROM (
        SELECT task.id, task.task_path, task.claimed_by, task.started_at,
            row_number() OVER (ORDER BY task.started_at, task.id) AS place
        FROM tasks_task AS task WHERE task.concurrency_key = wanted.key AND task.status = 'PROCESSING'
        ORDER BY task.started_at, task.id LIMIT %(cap)s::int
    ) AS holder
) AS running
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE ready.run_after <= statement_timestamp()) AS number,
        count(*) = %(cap)s::int AS is_capped
    FROM (
        SELECT task.run_after FROM tasks_task AS task
        WHERE task.concurrency_key = wanted.key AND task.status = 'READY' LIMIT %(cap)s::int
    ) AS ready
) AS waiting
LEFT JOIN LATERAL (
    SELECT rates.due, rates.next_at
    FROM rowlock_rates(wanted.key, sample.rate_key, sample.rate, sample.period_seconds, NULL) AS rates
    ORDER BY rates.due, rates.next_at DESC LIMIT 1
) AS bucket ON true
ORDER BY wanted.place
"""


class Holder(NamedTuple):
    """A running task that holds a slot."""

    id: int
    task_path: str
    worker_id: str
    since: datetime


@dataclass(frozen=True, kw_only=True)
class KeyLimit:
    """One key: what an operator set and what its tasks declare, and its use now.

    `is_in_use`: a task of it runs or waits. `is_capped`: more than `waiting` may wait. `due`: how many its rate allows
    to start now, None without a rate; `next_at`: when it allows the next start.
    """

    key: str
    max_running: int | None
    rate: int | None
    period_seconds: int | None
    paused: bool
    paused_at: datetime | None
    paused_by: str
    declared_running: int | None
    is_in_use: bool
    rate_key: str | None
    declared_rate: int | None
    declared_period: int | None
    running: int
    holders: tuple[Holder, ...]
    waiting: int
    is_capped: bool
    due: int | None
    next_at: datetime | None
    now: datetime

    @property
    def is_set(self) -> bool:
        """True if an operator set a number."""
        return self.max_running is not None or self.rate is not None

    @property
    def most(self) -> int | None:
        """How many may run at once; None: any number. A key without a limit or a rate is a limit of one."""
        declared = self.declared_running or (1 if self.is_in_use and self.rate_key is None else None)
        return self.max_running or declared

    @property
    def starts(self) -> tuple[int, int] | None:
        """The rate: starts in a period of so many seconds; None without one."""
        if self.rate and self.period_seconds:
            return self.rate, self.period_seconds
        if self.declared_rate and self.declared_period:
            return self.declared_rate, self.declared_period
        return None


def keys(text: str = "", after: str = "") -> list[str]:
    """The keys that have a limit or are in use, in order, from behind `after`: one more than a page shows."""
    params = {"text": text, "after": after, "most": SHOWN + 1}
    return [row["key"] for row in fetch(connection, KEYS, params)]


def limits(of: list[str]) -> list[KeyLimit]:
    """The limits of these keys, in this order."""
    rows = fetch(connection, LIMITS, {"keys": of, "holders": HOLDERS, "cap": CAP})
    return [KeyLimit(**{**row, "holders": holders_of(row["holders"])}) for row in rows]


def holders_of(written: str) -> tuple[Holder, ...]:
    rows = json.loads(written)
    return tuple(Holder(task_id, path, worker_id, datetime.fromisoformat(at)) for task_id, path, worker_id, at in rows)
