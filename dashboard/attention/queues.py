"""Queues without a worker, tasks that wait too long, stale tasks, and a restarted database."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import alerts, links
from dashboard.attention import thresholds
from dashboard.numbers import decimal
from tasks import panels
from tasks.diagnosis import stats
from tasks.diagnosis.finding import OF_LIFE, Verdict, command
from tasks.diagnosis.stats import GONE, Numbers, QueueNumbers
from tasks.panels import Act, AttentionLine, Figure, Severity, Snapshot, Step
from tasks.queue.presence import Life
from tasks.queue.release import LOCKED
from tasks.queue.throughput import percentile
from tasks.support.database import fetch
from tasks.support.durations import spoken

TWELFTH_MINUTES = 5  # of an hour
# A live worker recovers the tasks of dead ones within about a second. Past this time a person should check.
RECOVERY_SECONDS = 10
MOST_WORKERS = 200  # that one form names
COUNT_CAP = 50_000  # keeps counting cheap on a page that refreshes every two seconds

MOST_GIVEN_BACK = 1000  # attempts that are looked at: the latest ones

# The attempts that were given back have no fingerprint, so that the index of failures ends with them.
LOCKED_TASKS = """
SELECT given_back.worker_id, count(DISTINCT task.id) AS number, min(task.id) AS task_id,
    min(given_back.finished_at) AS since
FROM (SELECT task_id, worker_id, exception_class, finished_at FROM tasks_attempt
      WHERE fingerprint = '' ORDER BY finished_at DESC LIMIT %(most)s::int) AS given_back
JOIN tasks_task AS task ON task.id = given_back.task_id AND task.status = 'READY'
JOIN tasks_worker AS worker ON worker.id = given_back.worker_id AND worker.stopped_at IS NULL
WHERE given_back.exception_class = %(locked)s::text
GROUP BY given_back.worker_id ORDER BY since
"""


BLOCKED = """
SELECT count(*) AS blocked FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock'
"""


class InTrouble(NamedTuple):
    """Stale tasks, and sessions that wait for a lock."""

    stuck: int
    blocked: int


def in_trouble() -> InTrouble:
    """The numbers that every page shows, counted up to COUNT_CAP."""
    return InTrouble(stats.stuck(cap=COUNT_CAP), fetch(connection, BLOCKED)[0]["blocked"])


def numbers() -> Numbers:
    """The queues and workers, counted up to COUNT_CAP."""
    return stats.collect(cap=COUNT_CAP)


@panels.attention
def unserved(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Due tasks that no live worker will take."""
    found = snapshot.once(numbers)
    waiting = [queue for queue in found.queues if queue.ready and not queue.paused and not found.servers(queue.name)]
    # The watching process starts a worker for alerts, which must not itself change what needs attention.
    waiting = [queue for queue in waiting if queue.name != alerts.QUEUE]
    if any(worker.is_alive and worker.queues != [alerts.QUEUE] for worker in found.workers):
        for queue in waiting:
            yield unserved_line(queue, found.last_served(queue.name) or waiting_since([queue], snapshot.now))
    elif waiting:
        yield no_worker_line(waiting, found.last_served() or waiting_since(waiting, snapshot.now))


def unserved_line(queue: QueueNumbers, since: datetime | None) -> AttentionLine:
    text = ngettext(
        "No live worker serves the queue %(queue)s: %(number)d task waits.",
        "No live worker serves the queue %(queue)s: %(number)d tasks wait.",
        queue.ready,
    )
    return AttentionLine(
        key=f"unserved:{queue.name}",
        text=text % {"queue": queue.name, "number": queue.ready},
        severity=Severity.STOPPED,
        why=_("Workers are alive, but they were started for other queues."),
        since=since,
        size=queue.ready,
        step=Step(_("Look at the tasks"), ready_tasks(queue), command("run_worker", "--queue", queue.name)),
    )


def no_worker_line(waiting: list[QueueNumbers], since: datetime | None) -> AttentionLine:
    number = sum(queue.ready for queue in waiting)
    text = ngettext("No worker is alive: %(number)d task waits.", "No worker is alive: %(number)d tasks wait.", number)
    return AttentionLine(
        key="no-worker",
        text=text % {"number": number},
        severity=Severity.STOPPED,
        why=_("Queues: %(names)s.") % {"names": ", ".join(queue.name for queue in waiting[:10])},
        since=since,
        size=number,
        step=Step(_("Look at the workers"), links.page("admin:ops_workers"), command("run_worker")),
    )


@panels.attention
def late(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Queues whose oldest due task waits too long, unless no worker serves them, which is a line of its own."""
    found, late_seconds = snapshot.once(numbers), thresholds.values(snapshot)["late_seconds"]
    for queue in found.queues:
        if is_late(queue, late_seconds) and (queue.paused or found.servers(queue.name)):
            yield late_line(queue, snapshot.now)


def is_late(queue: QueueNumbers, late_seconds: float) -> bool:
    """True if its oldest due task waits longer than its objective, or than `late_seconds` if it has none.

    A paused queue waits on purpose, unless it has an objective.
    """
    if queue.objective_seconds is not None:
        return queue.is_past_objective
    return (queue.oldest_ready_seconds or 0) > late_seconds and not queue.paused


def late_line(queue: QueueNumbers, at: datetime) -> AttentionLine:
    text = _("The oldest due task of the queue %(queue)s has waited for %(age)s.")
    due = ngettext("%(number)d task is due.", "%(number)d tasks are due.", queue.ready) % {"number": queue.ready}
    parts, shell = [due], command("resume_queue", queue.name) if queue.paused else ""
    if queue.objective_seconds is not None:
        parts.insert(0, _("Its objective is %(age)s.") % {"age": spoken(queue.objective_seconds)})
    if queue.paused:
        parts.append(_("The queue is paused."))
    why_not = links.page("admin:tasks_task_why", queue.name)
    label, url = (_("Why not running?"), why_not) if why_not else (_("Look at the tasks"), ready_tasks(queue))
    return AttentionLine(
        key=f"late:{queue.name}",
        text=text % {"queue": queue.name, "age": spoken(queue.oldest_ready_seconds or 0)},
        severity=Severity.SLOW,
        why=" ".join(parts),
        since=waiting_since([queue], at),
        size=queue.ready,
        step=Step(label, url, shell),
    )


def locked_tasks() -> list[dict[str, Any]]:
    return fetch(connection, LOCKED_TASKS, {"locked": LOCKED, "most": MOST_GIVEN_BACK})


@panels.attention
def locked(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Waiting tasks that a live worker gave back, because it has no key for their arguments."""
    for found in snapshot.once(locked_tasks):
        text = ngettext(
            "Worker %(worker)s cannot read the encrypted arguments of %(number)d task.",
            "Worker %(worker)s cannot read the encrypted arguments of %(number)d tasks.",
            found["number"],
        )
        yield AttentionLine(
            key=f"locked:{found['worker_id']}",
            text=text % {"worker": found["worker_id"], "number": found["number"]},
            severity=Severity.STOPPED,
            why=_("Their key is not in ROWLOCK_PAYLOAD_KEYS of this worker. It gives them back; no attempt is spent."),
            since=found["since"],
            size=found["number"],
            step=Step(_("Look at the first task"), links.page("admin:tasks_task_change", found["task_id"])),
            permission="tasks.view_task",
        )


@panels.attention
def stale(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """PROCESSING tasks whose worker is dead or silent and that no worker is about to recover."""
    found = snapshot.once(numbers)
    has_sweeper = any(worker.is_alive for worker in found.workers)
    recovered_since = snapshot.now - timedelta(seconds=RECOVERY_SECONDS)
    for queue in found.queues:
        is_left = queue.stale_since is None or queue.stale_since < recovered_since
        if queue.stale and (queue.asks_a_person or not has_sweeper or is_left):
            yield stale_line(queue, found.dead.get(queue.name, []), has_sweeper=has_sweeper)


def stale_line(queue: QueueNumbers, dead: list[str], *, has_sweeper: bool) -> AttentionLine:
    text = ngettext(
        "%(number)d task in %(queue)s: %(verdicts)s.", "%(number)d tasks in %(queue)s: %(verdicts)s.", queue.stale
    )
    if queue.asks_a_person:
        why = _("Recovery of this queue is manual, because its tasks may run twice.")
    elif has_sweeper:
        why = _("No worker has taken them back yet: their worker may be silent and not dead, or their rows are locked.")
    else:
        why = _("No live worker is there to take them back.")
    return AttentionLine(
        key=f"stale:{queue.name}",
        text=text % {"number": queue.stale, "queue": queue.name, "verdicts": queue.stale_verdicts},
        severity=Severity.STOPPED,
        why=why,
        since=queue.stale_since,
        size=queue.stale,
        step=Step(_("Review"), links.page("admin:ops_stale", queue=queue.name), command("recover_tasks")),
        act=take_back(dead) if dead else None,
    )


def take_back(worker_ids: list[str]) -> Act | None:
    """The button that takes back what these dead workers hold; it asks first, with the tasks of each queue."""
    url, fields = links.page("admin:ops_take_back"), tuple(("worker", id) for id in worker_ids[:MOST_WORKERS])
    return Act(_("Take back…"), url, fields, "recover", "tasks.recover_task") if url else None


@panels.attention
def restarted(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """The database restarted, so recovery waits for the workers to reconnect."""
    back = [worker for worker in snapshot.once(numbers).workers if worker.life is Life.RESTARTED]
    if not back:
        return
    ages = [worker.heartbeat_age_seconds or 0 for worker in back]
    # A worker's tasks stay its own until the grace after the restart and its lease are over.
    left = max(max(worker.grace_seconds, worker.lease_seconds - age) for worker, age in zip(back, ages, strict=True))
    text = ngettext(
        "The database restarted; recovery waits until %(time)s for %(number)d worker to come back.",
        "The database restarted; recovery waits until %(time)s for %(number)d workers to come back.",
        len(back),
    )
    yield AttentionLine(
        key="restarted",
        text=text % {"number": len(back), "time": f"{snapshot.now + timedelta(seconds=left):%H:%M:%S} UTC"},
        severity=Severity.NOTICE,
        why=_("Every session ended with the restart, so a missing one proves nothing until then."),
        since=snapshot.now - timedelta(seconds=min(ages)),
        size=len(back),
        step=Step(_("Look at the workers"), links.page("admin:ops_workers")),
    )


@panels.figures
def last_hour(snapshot: Snapshot) -> Iterator[Figure]:
    """Completions a minute and the p95 wait of the last five minutes, failures of the hour; each with its course."""
    hour, now = snapshot.once(numbers).hour, snapshot.now
    per_minute = hour[-1].completed / (TWELFTH_MINUTES - 1 + now.second / 60)  # this minute is not over yet
    slow = [percentile(part.wait_buckets, 0.95) for part in hour]
    failed = sum(part.failed for part in hour)
    charts, see = f"{links.page('admin:index')}#charts", "tasks.view_throughput"
    done, waits = tuple(part.completed for part in hour), tuple(seconds or 0 for seconds in slow)
    yield Figure(_("Done / min"), rate(per_minute), charts, permission=see, spark=done)
    url = links.tasks(statuses=("FAILED",))
    yield Figure(_("Failed attempts"), decimal(failed), url, spark=tuple(part.failed for part in hour))
    wait = slow[-1]
    yield Figure(_("Wait p95"), "\u2013" if wait is None else spoken(wait), charts, permission=see, spark=waits)


def rate(value: float) -> str:
    """A number of tasks, with one decimal below ten.

    >>> rate(0), rate(2.34), rate(1234.5)
    ('0', '2.3', '1,234')
    """
    return decimal(value, 1 if 0 < value < 10 else 0)


@panels.figures
def workers(snapshot: Snapshot) -> Iterator[Figure]:
    """The number of live workers out of all; the note counts dead and silent ones."""
    found = snapshot.once(numbers).workers
    alive = sum(worker.is_alive for worker in found)
    verdicts = Counter(OF_LIFE[worker.life] for worker in found if worker.life in GONE)
    notes = []
    if dead := verdicts[Verdict.WORKER_DEAD]:
        notes.append(ngettext("%(number)d dead", "%(number)d dead", dead) % {"number": dead})
    if silent := verdicts[Verdict.WORKER_SILENT]:
        notes.append(ngettext("%(number)d silent", "%(number)d silent", silent) % {"number": silent})
    yield Figure(
        label=_("Workers"),
        value=_("%(alive)d of %(all)d") % {"alive": alive, "all": len(found)},
        url=links.page("admin:ops_workers"),
        note=", ".join(notes),
        is_trouble=bool(notes),
        permission="tasks.view_worker",
    )


def waiting_since(queues: list[QueueNumbers], at: datetime) -> datetime | None:
    """The moment since which the oldest due task of these queues waits."""
    ages = [queue.oldest_ready_seconds for queue in queues if queue.oldest_ready_seconds is not None]
    return at - timedelta(seconds=max(ages)) if ages else None


def ready_tasks(queue: QueueNumbers) -> str:
    return links.tasks(statuses=("READY",), queue_names=(queue.name,))
