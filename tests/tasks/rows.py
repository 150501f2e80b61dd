"""Tasks in each of their states, and workers alive, dead and just dead: the rungs that tests start from."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from tasks.models import Task, Worker
from tasks.operations import archive
from tasks.queue import presence
from tasks.support.database import Connection, fetch
from tests.sessions import session
from tests.waiting import wait_until

NOTHING = "tests.tasks.handlers.nothing"


def ready(**columns: Any) -> Task:
    return create(status="READY", **columns)


def processing(worker_id: str, **columns: Any) -> Task:
    defaults = {"attempt": 1, "started_at": timezone.now(), "version": 2}
    return create(status="PROCESSING", claimed_by=worker_id, **{**defaults, **columns})


def failed(**columns: Any) -> Task:
    return create(status="FAILED", **{"attempt": 5, "version": 11, "finished_at": timezone.now(), **columns})


def cancelled(**columns: Any) -> Task:
    return create(status="CANCELLED", **{"version": 2, "finished_at": timezone.now(), **columns})


def completed(**columns: Any) -> Task:
    return create(status="COMPLETED", **{"attempt": 1, "version": 3, "finished_at": timezone.now(), **columns})


def archived(**columns: Any) -> Task:
    """A completed task that has left the queue for the archive."""
    task = completed(**columns)
    window = {"after": task.pk - 1, "window": 1, "age": timedelta(0), "statuses": [task.status]}
    fetch(connection, archive.MAKE_MONTHS, window)
    assert fetch(connection, archive.ARCHIVE, window)[0]["archived"] == 1
    return task


def create(**columns: Any) -> Task:
    """The row as the database has it, its defaults included."""
    task = Task.objects.create(**{"task_path": NOTHING, **columns})
    task.refresh_from_db()
    return task


def many(number: int, **columns: Any) -> list[int]:
    """The ids of so many equal rows."""
    rows = [Task(**{"task_path": NOTHING, **columns}) for _ in range(number)]
    return [task.pk for task in Task.objects.bulk_create(rows, batch_size=2000)]


@contextmanager
def living_worker(worker_id: str = "w-alive", **columns: Any) -> Iterator[str]:
    """A worker with its row, its presence lock and a fresh heartbeat."""
    Worker.objects.create(id=worker_id, hostname="host", pid=1, **columns)
    with session(f"rowlock:worker:{worker_id}", autocommit=True) as conn:
        take_presence(conn, worker_id)
        assert presence.confirm(connection, worker_id)
        yield worker_id


def take_presence(conn: Connection, worker_id: str) -> None:
    """As a worker does; the session of an earlier test under the same id may end a moment after that test."""
    wait_until(lambda: presence.take(conn, worker_id))


def dead_worker(worker_id: str = "w-dead") -> str:
    """A worker that recovery has convicted before."""
    Worker.objects.create(id=worker_id, hostname="host", pid=1, stopped_at=timezone.now(), stop_reason="convicted")
    return worker_id


def just_died_worker(worker_id: str = "w-died", **columns: Any) -> str:
    """A worker whose session has ended a moment ago: its presence is gone, and nobody has looked yet."""
    with living_worker(worker_id, **columns):
        pass
    wait_until(lambda: not presence.states([worker_id], connection)[worker_id].held)
    return worker_id
