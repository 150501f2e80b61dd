"""Finished attempts and their latency over an hour, a day, a week or a chosen time, from the rollup."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import NamedTuple
from urllib.parse import urlencode

from django.db import connection
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from tasks.queue import throughput
from tasks.queue.throughput import KEPT, SLOT
from tasks.support.database import fetch

# Half-hour slots as far as they have been summed, single minutes after that. One array element at a time: to unnest
# 32 counts of each row took eight times as long.
SERIES = """
SELECT date_bin(%(step)s::interval, at, 'epoch') AS at,
    sum(completed)::bigint AS completed, sum(failed)::bigint AS failed,
    ARRAY[sum(run_buckets[1]), sum(run_buckets[2]), sum(run_buckets[3]), sum(run_buckets[4]), sum(run_buckets[5]),
        sum(run_buckets[6]), sum(run_buckets[7]), sum(run_buckets[8]), sum(run_buckets[9]), sum(run_buckets[10]),
        sum(run_buckets[11]), sum(run_buckets[12]), sum(run_buckets[13]), sum(run_buckets[14]),
        sum(run_buckets[15]), sum(run_buckets[16])]::bigint[] AS run_buckets,
    ARRAY[sum(wait_buckets[1]), sum(wait_buckets[2]), sum(wait_buckets[3]), sum(wait_buckets[4]),
        sum(wait_buckets[5]), sum(wait_buckets[6]), sum(wait_buckets[7]), sum(wait_buckets[8]),
        sum(wait_buckets[9]), sum(wait_buckets[10]), sum(wait_buckets[11]), sum(wait_buckets[12]),
        sum(wait_buckets[13]), sum(wait_buckets[14]), sum(wait_buckets[15]), sum(wait_buckets[16])]::bigint[]
        AS wait_buckets
FROM (
    SELECT at, completed, failed, run_buckets, wait_buckets FROM tasks_throughputslot
    WHERE at >= %(since)s::timestamptz AND at < %(minutes_since)s::timestamptz AND at < %(until)s::timestamptz
    UNION ALL
    SELECT minute, completed, failed, run_buckets, wait_buckets FROM tasks_throughput
    WHERE minute >= %(minutes_since)s::timestamptz AND minute < %(until)s::timestamptz
) AS part
GROUP BY 1 ORDER BY 1
"""

BY_QUEUE = """
WITH part AS (
    SELECT queue_name, at, completed, failed FROM tasks_throughputslot
    WHERE at >= %(since)s::timestamptz AND at < %(minutes_since)s::timestamptz AND at < %(until)s::timestamptz
    UNION ALL
    SELECT queue_name, minute, completed, failed FROM tasks_throughput
    WHERE minute >= %(minutes_since)s::timestamptz AND minute < %(until)s::timestamptz
), slot AS (
    SELECT queue_name, date_bin(%(step)s::interval, at, 'epoch') AS at, sum(completed) AS completed,
        sum(failed) AS failed
    FROM part GROUP BY 1, 2
)
SELECT queue_name, sum(completed)::bigint AS completed, sum(failed)::bigint AS failed,
    array_agg(at) AS times, array_agg((completed + failed)::bigint) AS numbers
FROM slot GROUP BY queue_name ORDER BY sum(completed + failed) DESC, queue_name LIMIT %(most)s::int
"""

# The rollup does not know functions, and no index has the time of the end. So this reads the newest tasks that were
# enqueued before the end of the span; bisection finds the first id after it.
BY_TASK = """
WITH RECURSIVE halving (low, high) AS (
    SELECT CASE WHEN %(is_past)s::boolean THEN (SELECT min(id) FROM tasks_task) END,
        (SELECT max(id) FROM tasks_task) + 1
    UNION ALL
    SELECT CASE WHEN probe.is_before THEN middle.id + 1 ELSE low END,
        CASE WHEN probe.is_before THEN high ELSE middle.id END
    FROM halving, LATERAL (SELECT (low + high) / 2 AS id) AS middle, LATERAL (
        SELECT created_at < %(until)s::timestamptz AS is_before
        FROM tasks_task AS task WHERE task.id >= middle.id ORDER BY task.id LIMIT 1) AS probe
    WHERE low < high
), newest AS MATERIALIZED (
    SELECT task_path, status, finished_at FROM tasks_task
    WHERE id < coalesce((SELECT low FROM halving WHERE low >= high LIMIT 1), 9223372036854775807)
    ORDER BY id DESC LIMIT %(sample)s::int
)
SELECT task_path, count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
    count(*) FILTER (WHERE status = 'FAILED') AS failed
FROM newest
WHERE status IN ('COMPLETED', 'FAILED') AND finished_at >= %(since)s::timestamptz
  AND finished_at < %(until)s::timestamptz
GROUP BY task_path ORDER BY count(*) DESC, task_path LIMIT %(most)s::int
"""

# The last slot, up to where half hours have been summed, and the end: of a span that goes on, in the far future.
LAST = """
SELECT date_bin(%(step)s::interval, coalesce(%(until)s::timestamptz - interval '1 microsecond', clock_timestamp()),
        'epoch') AS at,
    (SELECT max(at) + %(slot)s::interval FROM tasks_throughputslot) AS added_up_until,
    coalesce(%(until)s::timestamptz, clock_timestamp() + interval '1 day') AS until
"""
MOST, SAMPLE = 10, 2000


@dataclass(frozen=True)
class Span:
    """A stretch of time that a chart shows, as `slots` slots of `step`. Answers are cached for `seconds`.

    `since` and `until` bound a chosen time; a span without them ends now.
    """

    key: str
    label: str | Promise = field(compare=False)
    step: timedelta
    slots: int
    seconds: float
    since: datetime | None = None
    until: datetime | None = None

    @property
    def clock(self) -> str:
        """The `strftime` format of its times."""
        return "%H:%M" if self.step * self.slots <= timedelta(hours=1) else "%m-%d %H:%M"

    @property
    def query(self) -> str:
        """Its part of an address."""
        if self.since is None or self.until is None:
            return urlencode({"span": self.key})
        return urlencode({"from": f"{self.since:{FIELD}}", "to": f"{self.until:{FIELD}}"})


SPANS = {
    span.key: span
    for span in (
        Span("1h", gettext_lazy("Last hour"), timedelta(minutes=1), 60, 5),
        Span("24h", gettext_lazy("Last 24 hours"), timedelta(minutes=30), 48, 60),
        Span("7d", gettext_lazy("Last 7 days"), timedelta(hours=2), 84, 300),
    )
}
# The longest chosen time for each step. A minute is a row of every queue and worker, so it is for short ones.
STEPS = {
    timedelta(hours=2): timedelta(minutes=1),
    timedelta(days=2): timedelta(minutes=30),
    KEPT: timedelta(hours=2),
}
FIELD = "%Y-%m-%dT%H:%M"  # as a form writes a time


def chosen(since: datetime, until: datetime, now: datetime) -> Span:
    """The span from one time to another. Raises ValueError with the reason why it cannot be shown."""
    since, until = since.astimezone(UTC), min(until, now).astimezone(UTC)
    if since >= until:
        raise ValueError(_("The time must begin before it ends, and before now."))
    if since < now - KEPT:
        raise ValueError(_("Throughput is kept for %(days)d days.") % {"days": KEPT.days})
    step = next(step for longest, step in STEPS.items() if until - since <= longest)
    label = f"{since:%m-%d %H:%M} \u2013 {until:%m-%d %H:%M} UTC"
    return Span("chosen", label, step, math.ceil((until - since) / step), 60, since, until)


@dataclass(frozen=True)
class Slot:
    """Attempts that finished in one slot. `run_slow` and `wait_slow` are p95 in seconds, None without completions."""

    at: datetime
    completed: int = 0
    failed: int = 0
    run_buckets: Sequence[int] = ()
    wait_buckets: Sequence[int] = ()

    @cached_property
    def run_slow(self) -> float | None:
        return throughput.percentile(self.run_buckets, 0.95)

    @cached_property
    def wait_slow(self) -> float | None:
        return throughput.percentile(self.wait_buckets, 0.95)


class Share(NamedTuple):
    """Tasks that finished in one queue or of one function; `course`: in each slot, the oldest first."""

    name: str
    completed: int
    failed: int
    course: tuple[int, ...] = ()


class Seen(NamedTuple):
    """The rollup of a span: every slot, including empty ones, and the largest shares."""

    slots: list[Slot]
    queues: list[Share]
    tasks: list[Share]


def look(span: Span) -> Seen:
    """Everything that the charts of this span show; four statements."""
    last = fetch(connection, LAST, {"step": span.step, "slot": SLOT, "until": span.until})[0]
    first = last["at"] - span.step * (span.slots - 1)
    times = [first + span.step * number for number in range(span.slots)]
    # Steps shorter than half an hour need single minutes.
    added_up_until = last["added_up_until"] if span.step >= SLOT else None
    params = {
        "step": span.step, "since": first, "minutes_since": max(first, added_up_until or first),
        "until": last["until"], "is_past": span.until is not None, "most": MOST, "sample": SAMPLE,
    }  # fmt: skip
    found = {}
    for row in fetch(connection, SERIES, params):
        # A bucket that no row fills is NULL.
        run, wait = ([count or 0 for count in row[name]] for name in ("run_buckets", "wait_buckets"))
        found[row["at"]] = Slot(row["at"], row["completed"], row["failed"], run, wait)
    queues = []
    for row in fetch(connection, BY_QUEUE, params):
        numbers = dict(zip(row["times"], row["numbers"], strict=True))
        course = tuple(numbers.get(at, 0) for at in times)
        queues.append(Share(row["queue_name"], row["completed"], row["failed"], course))
    tasks = [Share(row["task_path"], row["completed"], row["failed"]) for row in fetch(connection, BY_TASK, params)]
    return Seen([found.get(at) or Slot(at) for at in times], queues, tasks)


@lru_cache(100)
def query_of(span: Span) -> Callable[[], Seen]:
    """The query of one span. It is one cached object per span, because answers are cached by their callable."""
    return partial(look, span)
