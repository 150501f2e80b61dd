"""Ask a worker to finish its tasks and to stop."""

from django.db import connection

from tasks.exceptions import RowlockError
from tasks.operations.chunks import short_waits
from tasks.queue import presence, wakeup
from tasks.support import audit
from tasks.support.audit import Change, Who

REQUEST_STOP = """
UPDATE tasks_worker SET stop_requested_at = statement_timestamp()
WHERE id = %(id)s::text AND stopped_at IS NULL AND stop_requested_at IS NULL
"""


class NoSuchWorker(RowlockError, LookupError):
    """No live worker has this id."""


def stop_worker(worker_id: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Ask a worker to stop claiming, finish its tasks and stop; True if the request is new.

    False for a worker that has already stopped. Raises NoSuchWorker for an unknown id and for a dead worker.
    """
    state = presence.states([worker_id])[worker_id]
    if not state.registered:
        raise NoSuchWorker(f"No worker has the id {worker_id!r}; `queue_status` lists the ids of those that live.")
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
