"""Count the tasks of each queue and the rate of each worker, for `queue_status`, the pages and the metrics.

The counts stay fast with ten million finished rows. Each uses a partial index and is capped. Completions come from the
rollup of minutes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection

from tasks.diagnosis.finding import OF_LIFE, Verdict
from tasks.queue import presence
from tasks.queue.presence import Life, WorkerState
from tasks.support.database import fetch

COUNT_CAP = 1_000_000
# Workers in these states do not work on their tasks. RESTARTED is not among them: after a restart of the database every
# worker is in it for a moment.
GONE = (Life.DEAD, Life.MISSING, Life.SILENT)

# A loose index scan over (queue, priority), like the claim's; with `queue` over the priorities of that one. The oldest
# due row of each pair is its first, so the age is exact for any number of rows.
UNKEYED_READY = """
WITH RECURSIVE queue (name) AS (
    SELECT coalesce(%(queue)s::text, (
        SELECT queue_name FROM tasks_task
        WHERE status = 'READY' AND ordering_key IS NULL AND concurrency_key IS NULL ORDER BY queue_name LIMIT 1))
    UNION ALL
    SELECT (SELECT task.queue_name FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
              AND task.queue_name > queue.name
            ORDER BY task.queue_name LIMIT 1)
    FROM queue WHERE queue.name IS NOT NULL AND %(queue)s::text IS NULL
), pair AS (
    (SELECT queue.name, first.priority FROM queue, LATERAL (
        SELECT task.priority FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
          AND task.queue_name = queue.name
        ORDER BY task.priority DESC LIMIT 1) AS first)
    UNION ALL
    SELECT pair.name, next.priority FROM pair, LATERAL (
        SELECT task.priority FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
          AND task.queue_name = pair.name
          AND task.priority < pair.priority
        ORDER BY task.priority DESC LIMIT 1) AS next
), oldest AS (
    SELECT pair.name, min(first.run_after) AS due_since FROM pair, LATERAL (
        SELECT task.run_after FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
          AND task.queue_name = pair.name
          AND task.priority = pair.priority AND task.run_after <= statement_timestamp()
        ORDER BY task.run_after LIMIT 1) AS first
    GROUP BY pair.name
)
SELECT queue.name AS queue_name, counted.ready, counted.scheduled,
    extract(epoch FROM statement_timestamp() - oldest.due_since)::float8 AS oldest_ready_seconds
FROM queue LEFT JOIN oldest ON oldest.name = queue.name, LATERAL (
    SELECT count(*) FILTER (WHERE run_after <= statement_timestamp()) AS ready,
        count(*) FILTER (WHERE run_after > statement_timestamp()) AS scheduled
    FROM (SELECT task.run_after FROM tasks_task AS task
          WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
            AND task.queue_name = queue.name
          LIMIT %(cap)s::int) AS capped
) AS counted
WHERE queue.name IS NOT NULL
"""

# A task that waits behind its key is not late, at any age. Only the first task of a key can be, if none of that key
# runs. The rows come from one index in its order. That index has no status column, or the planner would search all rows
# of a key for the running one.
KEYED_READY = """
WITH running AS MATERIALIZED (
    SELECT ordering_key, id FROM tasks_task WHERE ordering_key IS NOT NULL AND status = 'PROCESSING' LIMIT %(cap)s::int
), capped AS (
    SELECT ordering_key, id, queue_name, run_after FROM tasks_task
    WHERE ordering_key IS NOT NULL AND status IN ('READY', 'PROCESSING') ORDER BY ordering_key, id LIMIT %(cap)s::int
), judged AS (
    SELECT capped.queue_name, capped.run_after, capped.id IS DISTINCT FROM running.id AS is_ready,
        capped.run_after <= statement_timestamp() AS is_due,
        capped.id = min(capped.id) OVER one_key AND running.id IS NULL AS is_next
    FROM capped LEFT JOIN running ON running.ordering_key = capped.ordering_key
    WINDOW one_key AS (PARTITION BY capped.ordering_key)
)
SELECT queue_name, count(*) FILTER (WHERE is_due) AS ready, count(*) FILTER (WHERE NOT is_due) AS scheduled,
    extract(epoch FROM statement_timestamp() - min(run_after) FILTER (WHERE is_due AND is_next))::float8
        AS oldest_ready_seconds
FROM judged WHERE is_ready GROUP BY queue_name
"""

# Likewise a task that waits for a slot or a rate is not late: only the first ones of keys of which nothing runs can be.
LIMITED_READY = """
WITH held AS MATERIALIZED (
    SELECT concurrency_key AS key FROM tasks_task WHERE concurrency_key IS NOT NULL AND status = 'PROCESSING'
    UNION
    SELECT key FROM tasks_limit WHERE paused OR rate IS NOT NULL
), capped AS (
    SELECT concurrency_key, queue_name, run_after, rate_key FROM tasks_task
    WHERE concurrency_key IS NOT NULL AND status = 'READY'
    ORDER BY concurrency_key, queue_name, priority, run_after LIMIT %(cap)s::int
)
SELECT capped.queue_name, count(*) FILTER (WHERE capped.run_after <= statement_timestamp()) AS ready,
    count(*) FILTER (WHERE capped.run_after > statement_timestamp()) AS scheduled,
    extract(epoch FROM statement_timestamp() - min(capped.run_after) FILTER (
        WHERE capped.run_after <= statement_timestamp() AND held.key IS NULL AND capped.rate_key IS NULL))::float8
        AS oldest_ready_seconds
FROM capped LEFT JOIN held ON held.key = capped.concurrency_key GROUP BY capped.queue_name
"""

PROCESSING = """
SELECT queue_name, claimed_by, count(*) AS number
FROM (SELECT queue_name, claimed_by FROM tasks_task WHERE status = 'PROCESSING' LIMIT %(cap)s::int) AS capped
GROUP BY queue_name, claimed_by
"""

FAILED = """
SELECT queue_name, count(*) AS failed
FROM (SELECT queue_name FROM tasks_task WHERE status = 'FAILED' LIMIT %(cap)s::int) AS capped
GROUP BY queue_name
"""

# The last hour in twelfths, the newest last: the completions of each queue, and the sums of all queues without a name.
# Both come from one index scan over the hour's minutes. A minute ahead of a clock that was set back counts as the
# newest. To unnest the buckets took eight times as long.
LAST_HOUR = """
WITH hour AS MATERIALIZED (
    SELECT queue_name, completed, failed, wait_buckets,
        11 - greatest(0, extract(epoch FROM date_trunc('minute', statement_timestamp()) - minute)::int) / 300 AS twelfth
    FROM tasks_throughput WHERE minute > statement_timestamp() - interval '1 hour'
)
SELECT queue_name, twelfth, sum(completed)::bigint AS completed, sum(failed)::bigint AS failed,
    '{}'::bigint[] AS wait_buckets
FROM hour GROUP BY queue_name, twelfth
UNION ALL
SELECT NULL, twelfth, sum(completed)::bigint, sum(failed)::bigint,
    ARRAY[sum(wait_buckets[1]), sum(wait_buckets[2]), sum(wait_buckets[3]), sum(wait_buckets[4]),
        sum(wait_buckets[5]), sum(wait_buckets[6]), sum(wait_buckets[7]), sum(wait_buckets[8]),
        sum(wait_buckets[9]), sum(wait_buckets[10]), sum(wait_buckets[11]), sum(wait_buckets[12]),
        sum(wait_buckets[13]), sum(wait_buckets[14]), sum(wait_buckets[15]), sum(wait_buckets[16])]::bigint[]
FROM hour GROUP BY twelfth
"""
TWELFTHS = 12

# The last sign of life of the workers of each set of queues. A worker is convicted some time after its death, so for
# those its last heartbeat counts.
LAST_SEEN = """
SELECT queues, max(CASE WHEN stop_reason = 'convicted' THEN heartbeat_at
                        ELSE coalesce(stopped_at, heartbeat_at) END) AS at
FROM tasks_worker GROUP BY queues
"""

CONFIGURED = """
SELECT name, paused, recovery, extract(epoch FROM objective)::float8 AS objective_seconds FROM tasks_queue
"""

# The current minute counts only the part that has passed.
RATE_MINUTES, RATE_WINDOW = 20, 5  # shown, and measured beside the current one
RATES = """
WITH recent AS MATERIALIZED (
    SELECT shard, (extract(epoch FROM date_trunc('minute', statement_timestamp()) - minute) / 60)::int AS minutes_ago,
        sum(completed + failed)::float8 AS ended
    FROM tasks_throughput
    WHERE minute > date_trunc('minute', statement_timestamp()) - make_interval(mins => %(minutes)s::int)
    GROUP BY shard, minute
), ended AS MATERIALIZED (
    SELECT shard, array_agg(minutes_ago) AS minutes_ago, array_agg(ended) AS ended FROM recent GROUP BY shard
), worker AS (
    SELECT id, hashtext(id) & 32767 AS shard FROM unnest(%(ids)s::text[]) AS asked (id)
)
SELECT worker.id, coalesce(ended.minutes_ago, '{}') AS minutes_ago, coalesce(ended.ended, '{}') AS ended,
    extract(epoch FROM statement_timestamp() - date_trunc('minute', statement_timestamp()))::float8 AS seconds,
    count(*) OVER (PARTITION BY worker.shard) > 1 AS is_shared
FROM worker LEFT JOIN ended ON ended.shard = worker.shard
"""


@dataclass
class QueueNumbers:
    """One queue at one moment; ages in seconds.

    `stale`: PROCESSING tasks whose worker is dead or silent; `silent`: those of them whose worker is silent;
    `stale_since`: when the first of those workers was last seen. Counts stop at the cap of their statement.
    `oldest_ready_seconds` is None if nothing is due, or all due tasks wait behind their ordering keys.
    `objective_seconds`: how long a due task may wait, if an operator said so.
    """

    name: str
    ready: int = 0
    scheduled: int = 0
    processing: int = 0
    stale: int = 0
    silent: int = 0
    failed: int = 0
    completed_last_hour: int = 0
    oldest_ready_seconds: float | None = None
    paused: bool = False
    recovery: str = "automatic"
    objective_seconds: float | None = None
    stale_since: datetime | None = None

    @property
    def is_past_objective(self) -> bool:
        """True if its oldest due task has waited longer than its objective, paused or not."""
        return self.objective_seconds is not None and (self.oldest_ready_seconds or 0) > self.objective_seconds

    @property
    def asks_a_person(self) -> bool:
        """True if its stale tasks wait for a person."""
        return self.recovery == "ask"

    @property
    def stale_verdicts(self) -> str:
        """The verdicts on its stale tasks: `worker dead`."""
        numbers = {Verdict.WORKER_DEAD: self.stale - self.silent, Verdict.WORKER_SILENT: self.silent}
        return ", ".join(str(verdict.label).lower() for verdict, number in numbers.items() if number)


@dataclass
class Twelfth:
    """The attempts of all queues that finished in five minutes, with a histogram of the waits of completed ones."""

    completed: int = 0
    failed: int = 0
    wait_buckets: list[int] = field(default_factory=list)


@dataclass
class Numbers:
    """The queues by name, and every worker that lives or holds tasks.

    `last_seen`: sets of queues (empty: all) and when the last worker of each was seen alive; read only if due tasks of
    some queue have no live worker. `hour`: the last hour in twelfths, the newest last; `completed`, `failed`: likewise
    the attempts of each queue that finished any. `dead`: the dead workers that hold tasks of a queue.
    """

    queues: list[QueueNumbers] = field(default_factory=list)
    workers: list[WorkerState] = field(default_factory=list)
    last_seen: list[tuple[list[str], datetime]] = field(default_factory=list)
    hour: list[Twelfth] = field(default_factory=lambda: [Twelfth() for _ in range(TWELFTHS)])
    completed: dict[str, list[int]] = field(default_factory=dict)
    failed: dict[str, list[int]] = field(default_factory=dict)
    dead: dict[str, list[str]] = field(default_factory=dict)

    def servers(self, queue_name: str) -> list[WorkerState]:
        """The live workers that claim from this queue."""
        return [worker for worker in self.workers if worker.is_alive and worker.serves(queue_name)]

    def last_served(self, queue_name: str | None = None) -> datetime | None:
        """When the last worker of this queue (None: of any) was seen alive; None if there never was one."""
        seen = (at for names, at in self.last_seen if queue_name is None or not names or queue_name in names)
        return max(seen, default=None)

    def add_hour(self, row: dict[str, Any]) -> None:
        """Add one row of LAST_HOUR."""
        name = row["queue_name"]
        if name is None:
            waits = [count or 0 for count in row["wait_buckets"]]  # a bucket that no row fills is NULL
            self.hour[row["twelfth"]] = Twelfth(row["completed"], row["failed"], waits)
        else:
            self.completed.setdefault(name, [0] * TWELFTHS)[row["twelfth"]] = row["completed"]
            self.failed.setdefault(name, [0] * TWELFTHS)[row["twelfth"]] = row["failed"]


@dataclass(frozen=True)
class Rate:
    """Tasks ended per minute, over the last five to six minutes; `is_shared`: the sum of two workers or more.

    `minutes`: how many ended in each of the last minutes, oldest first.
    """

    per_minute: float
    is_shared: bool
    minutes: tuple[float, ...] = ()


class _Queues(dict[str, QueueNumbers]):
    """The numbers by name of the queue; a queue that is asked for is there."""

    def __missing__(self, name: str) -> QueueNumbers:
        self[name] = QueueNumbers(name)
        return self[name]

    def add_ready(self, cap: int, queue_name: str | None = None) -> None:
        unkeyed = fetch(connection, UNKEYED_READY, {"cap": cap, "queue": queue_name})
        keyed = [
            row for statement in (KEYED_READY, LIMITED_READY) for row in fetch(connection, statement, {"cap": cap})
        ]
        for row in unkeyed + keyed:
            queue = self[row["queue_name"]]
            queue.ready += row["ready"]
            queue.scheduled += row["scheduled"]
            ages = [age for age in (queue.oldest_ready_seconds, row["oldest_ready_seconds"]) if age is not None]
            queue.oldest_ready_seconds = max(ages, default=None)

    def add_processing(self, rows: list[dict[str, Any]], workers: Mapping[str, WorkerState]) -> None:
        for row in rows:
            queue = self[row["queue_name"]]
            queue.processing += row["number"]
            worker = workers.get(row["claimed_by"])
            if worker is not None and worker.life in GONE:
                queue.stale += row["number"]
                queue.silent += row["number"] if OF_LIFE[worker.life] is Verdict.WORKER_SILENT else 0
                last_seen = worker.stopped_at or worker.missing_since or worker.heartbeat_at
                queue.stale_since = min((at for at in (queue.stale_since, last_seen) if at), default=None)


def stuck(*, cap: int = COUNT_CAP) -> int:
    """The number of PROCESSING tasks whose worker is dead or silent, counted up to the cap."""
    queues, processing = _Queues(), fetch(connection, PROCESSING, {"cap": cap})
    if processing:
        queues.add_processing(processing, presence.states())
    return sum(queue.stale for queue in queues.values())


def collect(*, cap: int = COUNT_CAP) -> Numbers:
    """The numbers of every queue with a task, a setting or a worker that names it, and of every worker."""
    queues, found = _Queues(), Numbers()
    queues.add_ready(cap)
    processing = fetch(connection, PROCESSING, {"cap": cap})
    # Workers are read after their tasks, so that a worker that starts in between does not seem missing.
    workers = presence.states()
    queues.add_processing(processing, workers)
    for row in fetch(connection, FAILED, {"cap": cap}):
        queues[row["queue_name"]].failed = row["failed"]
    for row in fetch(connection, LAST_HOUR):
        found.add_hour(row)
    for name, twelfths in found.completed.items():
        queues[name].completed_last_hour = sum(twelfths)
    for row in fetch(connection, CONFIGURED):
        queue = queues[row["name"]]
        queue.paused, queue.recovery = row["paused"], row["recovery"]
        queue.objective_seconds = row["objective_seconds"]
    for name in {name for worker in workers.values() if worker.is_alive for name in worker.queues or ()}:
        queues[name]  # also show an idle queue that a worker serves
    found.queues = [queues[name] for name in sorted(queues)]
    found.workers = sorted(workers.values(), key=lambda worker: worker.id)
    for row in processing:
        worker = workers.get(row["claimed_by"])
        if worker is not None and OF_LIFE.get(worker.life) is Verdict.WORKER_DEAD:
            found.dead.setdefault(row["queue_name"], []).append(worker.id)
    if any(queue.ready and not found.servers(queue.name) for queue in found.queues):
        found.last_seen = [(row["queues"], row["at"]) for row in fetch(connection, LAST_SEEN)]
    return found


def waiting(queue_name: str, workers: Mapping[str, WorkerState], *, cap: int = COUNT_CAP) -> QueueNumbers:
    """The numbers of one queue's waiting and running tasks, given these workers; three statements."""
    queues = _Queues()
    queues.add_ready(cap, queue_name)
    queues.add_processing(fetch(connection, PROCESSING, {"cap": cap}), workers)
    return queues[queue_name]


def rates(lived_seconds: dict[str, float]) -> dict[str, Rate]:
    """The rate of each worker by id; a worker younger than the window is measured over its own life."""
    found = {}
    for row in fetch(connection, RATES, {"ids": list(lived_seconds), "minutes": RATE_MINUTES}):
        ended = dict(zip(row["minutes_ago"], row["ended"], strict=True))
        minutes = tuple(ended.get(ago, 0.0) for ago in reversed(range(RATE_MINUTES)))
        window = min(row["seconds"] + 60 * RATE_WINDOW, lived_seconds[row["id"]])
        per_minute = 60 * sum(minutes[-RATE_WINDOW - 1 :]) / max(1.0, window)
        found[row["id"]] = Rate(per_minute, row["is_shared"], minutes)
    return found
