"""The registry of task functions that may run: those declared with `@task`, never an arbitrary dotted path."""

from typing import TYPE_CHECKING

from tasks.exceptions import UnknownTask

if TYPE_CHECKING:
    from tasks.declaration import PostgresTask

_registered: dict[str, "PostgresTask"] = {}
# These run requests from pages, which check a right for each. The database refuses them to roles that may only enqueue:
# tasks/migrations/0022_refuse_internal.py and dashboard/migrations/0007_internal_lab.py.
INTERNAL_PATHS, INTERNAL_QUEUES = "tasks.tasks.", "rowlock"


def register(task: "PostgresTask") -> None:
    """Store the declaration under its path; a copy from `using()` does not replace it, a reloaded module does."""
    known = _registered.get(task.module_path)
    if known is None or known.func is not task.func:
        _registered[task.module_path] = task


def find(path: str) -> "PostgresTask | None":
    """The task declared under `path`, or None."""
    return _registered.get(path)


def get(path: str) -> "PostgresTask":
    """The task declared under `path`. Raises UnknownTask with advice."""
    task = _registered.get(path)
    if task is None:
        raise UnknownTask(
            f"No task is registered as {path!r}. Declare it with @task in the `tasks` module of an installed app "
            "(ROWLOCK_APPS adds apps), or correct the path."
        )
    return task


def durable_paths() -> list[str]:
    """Paths of durable tasks, sorted; each durable task is claimed alone."""
    return sorted(path for path, task in _registered.items() if task.durable)


def is_internal(path: str) -> bool:
    """True for a task that no person or other program may enqueue."""
    task = _registered.get(path)
    return path.startswith(INTERNAL_PATHS) or (task is not None and task.queue_name.startswith(INTERNAL_QUEUES))


def paths() -> list[str]:
    """Every registered path, sorted."""
    return sorted(_registered)
