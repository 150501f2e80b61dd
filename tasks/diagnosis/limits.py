"""The verdicts of limits: a task that waits for a slot, or for its rate."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from tasks.diagnosis.finding import Finding, Link, Verdict
from tasks.models import Task
from tasks.support import durations
from tasks.support.database import fetch
from tasks.support.durations import spoken

COUNT_CAP = 1000
HOLDERS_SHOWN = 5

# The keys, and those of the queues that have a limit. A queue counts what waits in its own line.
LIMITS = """
SELECT 'key' AS kind, wanted.key AS name, held.max_running, held.rate, held.period_seconds,
    coalesce(held.paused, false) AS paused, held.paused_at, coalesce(held.paused_by, '') AS paused_by,
    running.number AS running, running.holders, running.since, waiting.number AS waiting, bucket.next_at
FROM unnest(%(keys)s::text[]) AS wanted (key)
LEFT JOIN tasks_limit AS held ON held.key = wanted.key
LEFT JOIN tasks_bucket AS bucket ON bucket.name = 'key:' || wanted.key
CROSS JOIN LATERAL (
    SELECT count(*) AS number, min(started_at) AS since, (array_agg(id ORDER BY started_at, id))[1:6] AS holders
    FROM tasks_task WHERE concurrency_key = wanted.key AND status = 'PROCESSING') AS running
CROSS JOIN LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM tasks_task WHERE concurrency_key = wanted.key AND status = 'READY'
        LIMIT %(cap)s::int + 1) AS capped) AS waiting
UNION ALL
SELECT 'queue', queue.name, queue.max_running, queue.rate, queue.period_seconds, false, NULL, '',
    running.number, running.holders, running.since, waiting.number, bucket.next_at
FROM tasks_queue AS queue
LEFT JOIN tasks_bucket AS bucket ON bucket.name = 'queue:' || queue.name
CROSS JOIN LATERAL (
    SELECT count(*) AS number, min(started_at) AS since, (array_agg(id ORDER BY started_at, id))[1:6] AS holders
    FROM tasks_task WHERE queue_name = queue.name AND status = 'PROCESSING') AS running
CROSS JOIN LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM tasks_task
        WHERE queue_name = queue.name AND status = 'READY' AND ordering_key IS NULL AND concurrency_key IS NULL
        LIMIT %(cap)s::int + 1) AS capped) AS waiting
WHERE queue.name = ANY(%(queues)s::text[]) AND (queue.max_running IS NOT NULL OR queue.rate IS NOT NULL)
"""


@dataclass(frozen=True)
class LimitState:
    """The limit of a key or a queue: what an operator set, what runs and waits, and when its rate allows the next.

    `holders`: the first tasks that run; `since`: when the first of them began; `waiting`: at most the cap plus one.
    """

    kind: str  # key or queue
    name: str
    max_running: int | None = None
    rate: int | None = None
    period_seconds: int | None = None
    paused: bool = False
    paused_at: datetime | None = None
    paused_by: str = ""
    running: int = 0
    holders: Sequence[int] | None = None
    since: datetime | None = None
    waiting: int = 0
    next_at: datetime | None = None


Limits = Mapping[tuple[str, str], LimitState]


class LimitFacts(Protocol):
    """The facts that the verdicts of limits need."""

    @property
    def limits(self) -> Limits: ...
    @property
    def now(self) -> datetime: ...


def gather(ready: Iterable[Task]) -> Limits:
    """The limits that may hold back these READY tasks, by kind and name."""
    ready = list(ready)
    keys = {key for task in ready for key in (task.concurrency_key, task.rate_key) if key is not None}
    params = {"keys": list(keys), "queues": list({task.queue_name for task in ready}), "cap": COUNT_CAP}
    rows = fetch(connection, LIMITS, params) if ready else []
    return {(row["kind"], row["name"]): LimitState(**row) for row in rows}


def full(task: Task, facts: LimitFacts) -> tuple[LimitState, int] | None:
    """The limit whose slots are all taken, and their number."""
    of_key = facts.limits.get(("key", task.concurrency_key or ""))
    if of_key is not None:
        declared = task.concurrency_limit or (1 if task.rate_key is None else None)
        most = of_key.max_running or declared
        if most is not None and of_key.running >= most:
            return of_key, most
    of_queue = facts.limits.get(("queue", task.queue_name))
    if of_queue is not None and of_queue.max_running is not None and of_queue.running >= of_queue.max_running:
        return of_queue, of_queue.max_running
    return None


def spent(task: Task, facts: LimitFacts) -> tuple[LimitState, datetime] | None:
    """The limit whose rate lets the task begin last, and when, if that is ahead."""
    ahead = [
        (limit.next_at, limit)
        for limit, _rate in rates(task, facts)
        if limit.next_at is not None and limit.next_at > facts.now
    ]
    if not ahead:
        return None
    next_at, limit = max(ahead, key=lambda pair: pair[0])
    return limit, next_at


def rates(task: Task, facts: LimitFacts) -> Iterator[tuple[LimitState, str]]:
    """The limits of this task that have a rate, each with it in short: `100/m`."""
    for kind, name in (("key", task.concurrency_key), ("key", task.rate_key), ("queue", task.queue_name)):
        limit = facts.limits.get((kind, name or ""))
        if limit is not None and limit.rate is not None:
            yield limit, durations.rate_text(limit.rate, limit.period_seconds)
        elif limit is not None and kind == "key" and name == task.rate_key and task.rate is not None:
            yield limit, durations.rate_text(task.rate, task.period_seconds)


def paused(task: Task, facts: LimitFacts) -> LimitState | None:
    """The paused key of the task."""
    found = (facts.limits.get(("key", key or "")) for key in (task.concurrency_key, task.rate_key))
    return next((limit for limit in found if limit is not None and limit.paused), None)


def waiting_for_slot(task: Task, facts: LimitFacts) -> Finding:
    found = full(task, facts)
    assert found is not None
    limit, most = found
    holders = list(limit.holders or ())
    shown = ", ".join(f"#{holder}" for holder in holders[:HOLDERS_SHOWN]) + (
        ", …" if len(holders) > HOLDERS_SHOWN else ""
    )
    values = {
        "limit": most,
        "name": name_of(limit),
        "tasks": shown,
        "age": spoken((facts.now - limit.since).total_seconds()) if limit.since else _("a moment"),
    }
    text = ngettext(
        "The only slot of %(name)s is taken by %(tasks)s, for %(age)s.",
        "All %(limit)d slots of %(name)s are taken by %(tasks)s, the first for %(age)s.",
        most,
    )
    links = (link_of(limit), *(Link("task", str(holder)) for holder in holders[:HOLDERS_SHOWN]))
    return Finding(Verdict.WAITING_FOR_SLOT, text % values + number_waiting(limit), links)


def waiting_for_rate(task: Task, facts: LimitFacts) -> Finding:
    found = spent(task, facts)
    assert found is not None
    limit, next_at = found
    rate = next(rate for of, rate in rates(task, facts) if of is limit)
    values = {
        "name": name_of(limit),
        "rate": rate,
        "time": f"{next_at:%Y-%m-%d %H:%M:%S} UTC",
        "age": spoken((next_at - facts.now).total_seconds()),
    }
    sentence = _("The rate of %(name)s, %(rate)s, lets the next one begin at %(time)s, in %(age)s.") % values
    return Finding(Verdict.WAITING_FOR_RATE, sentence + number_waiting(limit), (link_of(limit),))


def name_of(limit: LimitState) -> str:
    if limit.kind == "queue":
        return _("the queue %(queue)s") % {"queue": limit.name}
    return _("the key “%(key)s”") % {"key": limit.name}


def link_of(limit: LimitState) -> Link:
    return Link("queue", limit.name) if limit.kind == "queue" else Link("limit", limit.name)


def number_waiting(limit: LimitState) -> str:
    """How many tasks wait for it, as a sentence."""
    if limit.waiting > COUNT_CAP:
        return " " + _("More than %(cap)d tasks wait for it.") % {"cap": COUNT_CAP}
    text = ngettext("%(number)d task waits for it.", "%(number)d tasks wait for it.", limit.waiting)
    return " " + text % {"number": limit.waiting} if limit.waiting else ""
