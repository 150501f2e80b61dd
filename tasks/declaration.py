"""What `@task` declares: the framework's Task with the options that this backend adds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks import registry
from tasks.compat import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTask(Task):
    """A task function and how to run it.

    `max_attempts`: attempts, spent at claim; None takes the setting. `backoff`: seconds before the next attempt, as a
    callable of the attempt's number; None takes exponential backoff with jitter. `timeout`: seconds after which the
    worker process that runs it is ended. `ordering_key`: text, or a callable of the arguments; tasks of one key run
    one at a time and in order. `ordered_by_commit`: that order is the order of commits, at the price of enqueuers of
    one key waiting for each other. `durable`: its completion is committed by itself, so that a crash repeats no more
    than this one task.
    """

    max_attempts: int | None = None
    backoff: Callable[[int], float] | None = None
    timeout: float | None = None
    ordering_key: str | Callable[..., str | None] | None = None
    ordered_by_commit: bool = False
    durable: bool = False

    def __post_init__(self) -> None:
        # Not super(): with slots, its cell names the class that @dataclass replaced (CPython 3.13 and older).
        Task.__post_init__(self)
        registry.register(self)

    def key_of(self, args: list[Any], kwargs: dict[str, Any]) -> str | None:
        """The ordering key of one call, or None."""
        if callable(self.ordering_key):
            return self.ordering_key(*args, **kwargs)
        return self.ordering_key
