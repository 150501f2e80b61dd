"""`shared_task` for the plain cases of Celery (5.6), so that a project can switch its import before its code.

`from tasks.contrib.celery import shared_task` replaces `from celery import shared_task`. Every option and method that
is not here is refused by name, with what to do instead.

What differs: a task is part of the caller's transaction. A higher number is more urgent, as in RabbitMQ; with Redis as
Celery's broker 0 is the most urgent, so turn those round. A task without `autoretry_for` has one attempt, and if its
worker dies it is FAILED on its page, where Celery forgets it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import update_wrapper, wraps
from inspect import iscoroutinefunction
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from django.utils import timezone

from tasks.compat import TaskResult
from tasks.framework.declaration import PostgresTask
from tasks.framework.decorator import task

P = ParamSpec("P")
R = TypeVar("R")

OWN_TASK = "declare the function with `tasks.task`"
RESULT = "leave it out: the row keeps the return value, and `prune_tasks` deletes it"
INSTEAD = {
    "bind": "use `@tasks.task(takes_context=True)`: the context has the attempt, reports and checkpoints",
    "base": "call the code of the base class in the function",
    "ignore_result": RESULT,
    "store_errors_even_if_ignored": RESULT,
    "acks_late": "leave it out: give `autoretry_for`, and a task whose worker died runs again",
    "reject_on_worker_lost": "leave it out: give `autoretry_for`, and a task whose worker died runs again",
    "time_limit": "use `@tasks.task(timeout=seconds)`",
    "soft_time_limit": "use `@tasks.task(timeout=seconds)`",
    "rate_limit": "use `@tasks.task(rate_limit='100/m')`",
    "retry_kwargs": "use `max_retries` and `default_retry_delay`",
    "dont_autoretry_for": "name the other exceptions in `autoretry_for`",
    "serializer": "leave it out: arguments are JSON",
    "compression": "leave it out: PostgreSQL compresses long values",
    "expires": "let the function return when it is late; `cancel_tasks` cancels what waits",
    "task_id": "use `unique_key` of `using()`; the id is a number that the database gives",
    "link": "enqueue the next task at the end of the function",
    "link_error": "use the signal `task_finished`, or an alert",
    "routing_key": "use `queue`",
    "exchange": "use `queue`",
    "retry": "leave it out: the task is a row of your transaction",
    "retry_policy": "leave it out: the task is a row of your transaction",
    "delay_on_commit": "call `delay`: nobody sees the task before your commit",
    "apply_async_on_commit": "call `apply_async`: nobody sees the task before your commit",
    "apply": "call the function",
    "s": "enqueue the next task at the end of the function",
    "si": "enqueue the next task at the end of the function",
    "signature": "enqueue the next task at the end of the function",
    "map": "use `.task.enqueue_many()`",
    "starmap": "use `.task.enqueue_many()`",
    "chunks": "use `.task.enqueue_many()`",
    "AsyncResult": "use `.task.get_result(id)`",
    "request": "use `@tasks.task(takes_context=True)`",
    "update_state": "use `@tasks.task(takes_context=True)` and `context.report()`",
}


class SharedTask(Generic[P, R]):
    """A task as Celery's callers use it; `task` is the same for Rowlock's. Made by `shared_task`."""

    def __init__(self, task: PostgresTask[P, R], function: Callable[P, R]) -> None:
        update_wrapper(self, function)
        self.task = task
        self.name = task.module_path
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        return self._function(*args, **kwargs)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]":
        """Enqueue the task. In place of `get()` the result has `refresh()` and `return_value`."""
        return self.task.enqueue(*args, **kwargs)

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        **others: Any,
    ) -> "TaskResult[P, R]":
        """Enqueue the task in `countdown` seconds, or at `eta`, an aware datetime; a higher priority goes first."""
        _refuse("apply_async()", others)
        if countdown is not None:
            if eta is not None:
                raise TypeError(f"apply_async() of {self.name} takes countdown or eta, not both.")
            eta = timezone.now() + timedelta(seconds=countdown)
        changed = self.task.using(run_after=eta, queue_name=queue, priority=priority)
        return cast("Any", changed).enqueue(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name in INSTEAD:
            raise AttributeError(f"{self.__module__}.{self.__qualname__} has no {name!r} here: {INSTEAD[name]}.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@overload
def shared_task(function: Callable[P, R], /) -> SharedTask[P, R]: ...
@overload
def shared_task(
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    max_retries: int = 3,
    autoretry_for: Sequence[type[BaseException]] = (),
    retry_backoff: bool | float = False,
    retry_backoff_max: float = 600,
    retry_jitter: bool = True,
    default_retry_delay: float = 180,
) -> Callable[[Callable[P, R]], SharedTask[P, R]]: ...
def shared_task(*functions: Any, **options: Any) -> Any:
    """Declare a task with Celery's options, and their defaults.

    `name`: the path under which rows name it, with a dot; by default the module and the name of the function.
    `autoretry_for`: exceptions after which it is tried again, at most `max_retries` times; all others fail it at once.
    `retry_backoff`: seconds before the first retry, doubled each time up to `retry_backoff_max`; True: 1. With
    `retry_jitter` a random part of them. Without a backoff, each waits `default_retry_delay` seconds.

    Raises TypeError for options that are not supported.
    """
    if functions:
        return _declare(*functions)
    return lambda function: _declare(function, **options)


def _declare(
    function: Callable[P, R],
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    max_retries: int = 3,
    autoretry_for: Sequence[type[BaseException]] = (),
    retry_backoff: bool | float = False,
    retry_backoff_max: float = 600,
    retry_jitter: bool = True,
    default_retry_delay: float = 180,
    **others: Any,
) -> SharedTask[P, R]:
    _refuse("shared_task()", others)
    if iscoroutinefunction(function):
        raise TypeError(f"shared_task() does not take the coroutine {function.__qualname__}: {OWN_TASK}.")
    if max_retries is None:
        raise TypeError("shared_task() does not support max_retries=None: give a number up to 999.")
    first = max(1.0, float(retry_backoff))

    def backoff(attempt: int) -> float:
        if not retry_backoff:
            return default_retry_delay
        whole = min(retry_backoff_max, first * 2 ** (attempt - 1))
        return random.uniform(0, whole) if retry_jitter else whole  # noqa: S311  not for secrets

    declared = task(
        queue_name=queue,
        priority=priority,
        max_attempts=max_retries + 1 if autoretry_for else 1,
        retry_for=tuple(autoretry_for),
        backoff=backoff,
    )(function if name is None else _renamed(function, name))
    return SharedTask(declared, function)


def _renamed(function: Callable[P, R], name: str) -> Callable[P, R]:
    """The function under another path."""
    module, _, last = name.rpartition(".")
    if not module or not last:
        raise TypeError(f"shared_task() takes a name with a dot, like 'shop.tasks.send', not {name!r}.")

    @wraps(function)
    def renamed(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    renamed.__module__, renamed.__qualname__, renamed.__name__ = module, last, last
    return renamed


def _refuse(what: str, options: Mapping[str, Any]) -> None:
    """Raise TypeError that names an option that is not supported, and what to do instead."""
    for option in options:
        raise TypeError(f"{what} does not support {option!r}: {INSTEAD.get(option, OWN_TASK)}.")
