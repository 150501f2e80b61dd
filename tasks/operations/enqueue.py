"""Enqueue a task by its path: registered tasks only, never an arbitrary dotted path."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import repeat
from typing import Any

from django.db import connection

from tasks.exceptions import InternalTask, UnknownTask
from tasks.framework import declaration
from tasks.framework.arguments import Enqueued
from tasks.framework.declaration import PostgresTask
from tasks.support import audit, reading
from tasks.support.audit import Change, Who
from tasks.support.database import transaction


def enqueue(
    path: str,
    who: Who,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    count: int = 1,
    reason: str = "",
    dry_run: bool = False,
    **options: Any,
) -> Enqueued:
    """Enqueue `count` identical tasks, all or none; returns their ids. One intervention covers all of them, unless the
    task with their unique key is kept.

    `options` are those of the task's `using`; None keeps what the task declares. Raises UnknownTask, InternalTask,
    Unreadable for a queue of the demo, and the backend's errors about arguments and options.
    """
    if declaration.is_internal(path):
        raise InternalTask(f"{path}: {InternalTask.__doc__}")
    task = registered(path).using(**options)
    reading.destination(task.queue_name)
    with transaction(connection, rollback=dry_run):
        ids = task.enqueue_many(repeat((list(args), dict(kwargs or {})), count))
        made = count - ids.duplicates
        action = "replace" if not made else "enqueue" if made == 1 else f"enqueue count={made} last_id={ids[-1]}"
        if made or ids.replaced:
            audit.record(connection, who, action, [Change(audit.task(ids[0]))], reason)
    return ids


def registered(path: str) -> PostgresTask:
    """The task declared under `path`. Raises UnknownTask with similar paths, or the known ones."""
    task = declaration.find(path)
    if task is not None:
        return task
    paths = declaration.paths()
    if similar := get_close_matches(path, paths, n=3, cutoff=0.5):
        hint = f"Did you mean {' or '.join(similar)}?"
    elif paths:
        hint = f"Registered are: {', '.join(paths[:10])}{', …' if len(paths) > 10 else ''}."
    else:
        hint = "No task is registered at all: declare one with @task in the `tasks` module of an installed app."
    raise UnknownTask(f"No task is registered as {path!r}. {hint}")
