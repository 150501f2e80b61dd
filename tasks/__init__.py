"""The task queue in PostgreSQL and its locking primitives: the lowest layer of Rowlock.

Its public names are below; docs/api.md says what is promised of them. Each is imported at its first use, because models
cannot be imported before Django's apps are ready.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.exceptions import InvalidArguments as InvalidArguments
    from tasks.exceptions import LockCycle as LockCycle
    from tasks.exceptions import LockHeld as LockHeld
    from tasks.exceptions import LockLost as LockLost
    from tasks.exceptions import LockUnavailable as LockUnavailable
    from tasks.exceptions import RowlockError as RowlockError
    from tasks.exceptions import StaleVersion as StaleVersion
    from tasks.framework.context import TaskContext as TaskContext
    from tasks.framework.decorator import task as task
    from tasks.framework.enqueue import enqueue_many as enqueue_many
    from tasks.locking import VersionedModel as VersionedModel
    from tasks.locking import VersionTrigger as VersionTrigger
    from tasks.locking import lock as lock
    from tasks.locking import locked_batches as locked_batches
    from tasks.locking import update_each as update_each
    from tasks.locking import update_if_unchanged as update_if_unchanged
    from tasks.locking.double_checked import around_each_row as around_each_row
    from tasks.locking.double_checked import double_checked as double_checked
    from tasks.patterns import register_pattern as register_pattern

MODULES = {
    "tasks.exceptions": (
        "InvalidArguments", "LockCycle", "LockHeld", "LockLost", "LockUnavailable", "RowlockError", "StaleVersion",
    ),
    "tasks.framework.context": ("TaskContext",),
    "tasks.framework.decorator": ("task",),
    "tasks.framework.enqueue": ("enqueue_many",),
    "tasks.locking": (
        "VersionTrigger", "VersionedModel", "lock", "locked_batches", "update_each", "update_if_unchanged",
    ),
    "tasks.locking.double_checked": ("around_each_row", "double_checked"),
    "tasks.patterns": ("register_pattern",),
}  # fmt: skip
__version__ = "0.1.0"
__all__ = [name for names in MODULES.values() for name in names]

if not TYPE_CHECKING:  # a type checker would take every name for one of ours

    def __getattr__(name: str) -> Any:
        """Import a public name from its module (PEP 562)."""
        for module, names in MODULES.items():
            if name in names:
                return getattr(import_module(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
