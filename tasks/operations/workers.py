"""Ask a worker to stop, or release the tasks that a hanging worker has not begun."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from django.db import connection
from django.utils import timezone
from django.utils.translation import gettext as _

from tasks.exceptions import RowlockError
from tasks.models import Task, TaskStatus, Worker
from tasks.operations.verb import CHANGED, Refusal, Result, Settings, Verb, short_waits
from tasks.queue import presence, wakeup
from tasks.queue.presence import WorkerState
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch

RIGHT_TO_STOP, RIGHT_TO_RELEASE = "tasks.stop_worker", "tasks.requeue_task"

# A supervisor releases the rest of a batch when a task runs longer than a quarter of a second. This is for a worker
# whose supervisor does not: frozen or cut off from the database. The supervisor also reports its worker's current task.
# Without a report we assume the first task of the oldest claim, because a batch runs in order.
HANGS_AFTER_SECONDS = 5
MOST_RELEASED = 5000

CURRENT = """
SELECT worker.current_task_id AS id,
    extract(epoch FROM clock_timestamp() - worker.current_since)::float8 AS seconds
FROM tasks_worker AS worker JOIN tasks_task AS task ON task.id = worker.current_task_id
WHERE worker.id = %(id)s::text AND task.status = 'PROCESSING' AND task.claimed_by = worker.id
"""

FIRST = """
SELECT id, extract(epoch FROM clock_timestamp() - started_at)::float8 AS seconds FROM tasks_task
WHERE status = 'PROCESSING' AND claimed_by = %(id)s::text
ORDER BY started_at, priority DESC, run_after, id LIMIT 1
"""

# The attempt is given back, as when the worker itself releases; the new version refuses the worker's late writes.
RELEASE = """
UPDATE tasks_task AS task SET
    status = CASE WHEN task.cancel_requested_at IS NULL THEN 'READY' ELSE 'CANCELLED' END,
    version = task.version + 1, claimed_by = NULL, attempt = task.attempt - 1, started_at = NULL,
    finished_at = CASE WHEN task.cancel_requested_at IS NULL THEN NULL ELSE statement_timestamp() END
WHERE task.id = ANY(%(ids)s::bigint[])
RETURNING task.id, task.version
"""

REQUEST_STOP = """
UPDATE tasks_worker SET stop_requested_at = statement_timestamp()
WHERE id = %(id)s::text AND stopped_at IS NULL AND stop_requested_at IS NULL
"""


class NoSuchWorker(RowlockError, LookupError):
    """No live worker has this id."""


class NotHanging(RowlockError):
    """The worker is on its way through its tasks; nothing is taken from it."""


def stop_worker(worker_id: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Ask a worker to stop claiming, finish its tasks and stop; True if the request is new.

    False for a worker that has already stopped. Raises NoSuchWorker for an unknown id and for a dead worker.
    """
    state = registered(worker_id)
    if state.stopped_at is not None:
        return False
    if state.is_dead:
        raise NoSuchWorker(f"Worker {worker_id} is dead and cannot hear; `recover_tasks` takes back what it held.")
    with short_waits(rollback=dry_run), connection.cursor() as cursor:
        cursor.execute(REQUEST_STOP, {"id": worker_id})
        requested = bool(cursor.rowcount)
        if requested:
            audit.record(connection, who, "stop", [Change(audit.worker(worker_id))], reason)
            wakeup.summon(connection)
    return requested


def registered(worker_id: str) -> WorkerState:
    """The state of the worker. Raises NoSuchWorker for an unknown id."""
    state = presence.states([worker_id])[worker_id]
    if not state.registered:
        raise NoSuchWorker(f"No worker has the id {worker_id!r}; `queue_status` lists the ids of those that live.")
    return state


class Current(NamedTuple):
    """The task on which a worker hangs; `is_reported`: its supervisor named it, otherwise we assume it."""

    id: int
    is_reported: bool


@dataclass(kw_only=True)
class Release(Verb):
    """Release a worker's tasks except those that it runs."""

    name = "release"

    worker_id: str
    running: set[int]

    def refusal(self, task: Task) -> Refusal | None:
        worker = {"id": self.worker_id}
        if task.status != TaskStatus.PROCESSING or task.claimed_by != self.worker_id:
            return Refusal(CHANGED.code, _("worker %(id)s holds it no more") % worker, task.status, task.version)
        if task.pk in self.running:
            return Refusal("live", _("worker %(id)s is on it") % worker, task.status, task.version)
        return None

    def write(self, tasks: list[Task]) -> None:
        self.result.done += self.change(RELEASE, tasks, action=f"{self.name} unstarted")


def release_unstarted(
    worker_id: str, who: Who, *, reason: str = "", versions: Mapping[int, int] | None = None, dry_run: bool = False
) -> Result:
    """Release a live worker's tasks except the one on which it hangs; no attempt is spent.

    `versions`: the tasks that the operator saw, each with its version; None: all of them. If the worker runs a released
    task after all, its result is refused, but the effect may happen twice. Raises NoSuchWorker for an unknown or dead
    worker, NotHanging for one that began its task less than HANGS_AFTER_SECONDS ago.
    """
    current_id = hanging_on(worker_id).id
    ids = list(versions) if versions is not None else unstarted(worker_id, current_id)
    how = {"versions": versions, "dry_run": dry_run, "worker_id": worker_id, "running": running(worker_id, current_id)}
    return Release.act(ids, who, Settings(reason=reason), **how)


def hanging_on(worker_id: str) -> Current:
    """The task on which a live worker hangs. Raises as `release_unstarted`."""
    state = registered(worker_id)
    if state.is_dead or state.stopped_at is not None:
        raise NoSuchWorker(f"Worker {worker_id} is dead; `recover_tasks` takes back all that it held.")
    reported = fetch(connection, CURRENT, {"id": worker_id})
    found = reported or (fetch(connection, FIRST, {"id": worker_id}) if state.is_late else [])
    if not found or found[0]["seconds"] < HANGS_AFTER_SECONDS:
        raise NotHanging(
            f"Worker {worker_id} has not been on one task for {HANGS_AFTER_SECONDS} s: it is on its way through its "
            "batch, or holds none. Nothing was released."
        )
    return Current(found[0]["id"], is_reported=bool(reported))


def running(worker_id: str, current_id: int) -> set[int]:
    """The current task, and the others that run beside it.

    A worker of many threads is not up to date about those that it has just begun, so that a task counts as running
    until it has been claimed for a while.
    """
    known = Worker.objects.filter(pk=worker_id).values_list("running_ids", flat=True).first() or []
    if len(known) < 2:
        return {current_id}
    recent = timezone.now() - timedelta(seconds=HANGS_AFTER_SECONDS)
    fresh = Task.objects.processing().filter(claimed_by=worker_id, started_at__gt=recent)
    return {current_id, *known, *fresh.values_list("pk", flat=True)}


def unstarted(worker_id: str, current_id: int) -> list[int]:
    """Ids of the worker's tasks except those that it runs."""
    held = Task.objects.processing().filter(claimed_by=worker_id).exclude(pk__in=running(worker_id, current_id))
    held = held.order_by("pk")
    return list(held.values_list("pk", flat=True)[:MOST_RELEASED])
