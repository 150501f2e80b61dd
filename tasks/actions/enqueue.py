"""Enqueue by hand a task that a person names by its path: registered ones only, never an arbitrary dotted path."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from itertools import repeat
from typing import Any

from django.db import connection

from tasks import audit, reading, registry
from tasks.audit import Change, Who
from tasks.database import transaction
from tasks.declaration import PostgresTask
from tasks.exceptions import InternalTask, UnknownTask


def enqueue(
    path: str,
    who: Who,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    queue_name: str | None = None,
    priority: int | None = None,
    run_after: datetime | None = None,
    ordering_key: str | None = None,
    count: int = 1,
    reason: str = "",
    dry_run: bool = False,
) -> list[int]:
    """Enqueue `count` equal tasks, all or none; their ids. What is None stays as the task declares it.

    One intervention tells of all of them. Raises UnknownTask, InternalTask, Unreadable for a queue of the demo, and
    what the backend raises for arguments and options.
    """
    if registry.is_internal(path):
        raise InternalTask(f"{path}: {InternalTask.__doc__}")
    task = registered(path).using(
        queue_name=queue_name, priority=priority, run_after=run_after, ordering_key=ordering_key
    )
    reading.destination(task.queue_name)
    with transaction(connection, rollback=dry_run):
        ids = task.enqueue_many(repeat((list(args), dict(kwargs or {})), count))
        action = "enqueue" if count == 1 else f"enqueue count={count} last_id={ids[-1]}"
        audit.record(connection, who, action, [Change(audit.task(ids[0]))], reason)
    return ids


def registered(path: str) -> PostgresTask:
    """The task declared under `path`; raises UnknownTask that names those with a similar path."""
    task = registry.find(path)
    if task is not None:
        return task
    similar = get_close_matches(path, registry.paths(), n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(similar)}?" if similar else known_paths()
    raise UnknownTask(f"No task is registered as {path!r}. {hint}")


def known_paths() -> str:
    """What there is to choose from, or how to get something."""
    paths = registry.paths()
    if not paths:
        return "No task is registered at all: declare one with @task in the `tasks` module of an installed app."
    return f"Registered are: {', '.join(paths[:10])}{', …' if len(paths) > 10 else ''}."
