"""The options that `@task` declares, and the registry of the functions that may run.

A worker runs registered functions only, never an arbitrary dotted path.
"""

import logging
import math
import random as default_random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cache
from inspect import isclass, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, cast

from django.utils.module_loading import import_string

from tasks import conf
from tasks.compat import InvalidTask, Task
from tasks.exceptions import InvalidArguments, InvalidSchedule, UnknownTask
from tasks.framework.arguments import Call, Calls, Enqueued, check_key, key_of_arguments
from tasks.support import durations
from tasks.support.reading import name_problem
from tasks.support.recurrence import MISSED, OVERLAP, recurrence

if TYPE_CHECKING:
    from tasks.compat import TaskResult

P = ParamSpec("P")
R = TypeVar("R")

MAX_ATTEMPTS = range(1, 1001)  # a requeue adds new attempts to a smallint
PRIORITIES = range(-100, 101)
CONCURRENCY_LIMITS = range(1, 10_001)
UNIQUE_WHILE = ("queued", "active")
ON_DUPLICATE = ("keep", "replace")
NO_KEYS = ("active", "keep", None)  # else an enqueue would check them each time
LEVELS = {name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}
YEARS = range(2, 9999)  # valid datetimes in every time zone
# These run requests from pages, which check a right for each. The database refuses them to roles that may only enqueue:
# tasks/migrations/0003_guards.py and dashboard/migrations/0001_tables.py.
INTERNAL_PATHS, INTERNAL_QUEUES = "tasks.tasks.", "rowlock"

Key = str | Callable[..., str | None] | None  # text, or a callable of the arguments

_registered: dict[str, "PostgresTask"] = {}
_is_async = cache(iscoroutinefunction)


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


def handler(path: str) -> "PostgresTask":
    """Import the task at this dotted path, for callers whose module the task's own module imports."""
    return PostgresTask.of(import_string(path))


def durable_paths() -> list[str]:
    """Paths of durable tasks, sorted; each durable task is claimed alone."""
    return sorted(path for path, task in _registered.items() if task.durable)


def has_coroutines() -> bool:
    """True if an `async def` function is registered."""
    return any(task.is_async for task in _registered.values())


def is_internal(path: str) -> bool:
    """True for a task that no person or other program may enqueue."""
    task = _registered.get(path)
    return path.startswith(INTERNAL_PATHS) or (task is not None and task.queue_name.startswith(INTERNAL_QUEUES))


def paths() -> list[str]:
    """Every registered path, sorted."""
    return sorted(_registered)


class Keys(NamedTuple):
    """The keys of one call; None where it has none."""

    ordering: str | None
    unique: str | None
    concurrency: str | None
    rate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTask(Task, Generic[P, R]):
    """A task function with its options.

    `max_attempts`: attempts, counted at claim; None takes the setting. `backoff`: a callable of the attempt's number
    that returns the seconds before the next attempt; None takes exponential backoff with jitter. `retry_for`: exception
    classes after which it is tried again, others fail it at once; None: after all. `timeout`: seconds
    after which the worker process that runs it is ended. `ordering_key`: text, or a callable of the arguments; tasks of
    one key run one at a time and in order. `ordered_by_commit`: that order is the order of commits; enqueuers of one
    key wait for each other. `durable`: its completion is committed on its own, so that a crash repeats only this one
    task. `relaxed_commit`: the handler's commits do not wait for the disk, as that of the completion does; None: as the
    setting says. `schedule`, `every`, `timezone`, `missed`, `overlap`: when it runs by itself, see docs/limits.md.
    `log_level`: the lowest level of lines that are kept with each attempt; None keeps INFO, but of tasks
    that succeed within a second WARNING.

    `unique_key`: text, a callable of the arguments, or True for the task's path and arguments; at most one task has it
    `unique_while` "queued" (until a worker claims it) or "active" (until it has ended). `on_duplicate`: "keep" gives
    back the id of the task that has the key; "replace" also gives that task the new arguments, time and priority if it
    is READY. `concurrency_key`: text, or a callable of the arguments; at most `concurrency_limit` tasks of one key run
    at once. `rate_limit`: "100/m" starts at most a hundred a minute, evenly (s, m, h, d); `rate_key`: text, or a
    callable of the arguments, shares that rate among the tasks of one key; None: among those of this function. An
    operator's limit of a key goes before both.
    """

    max_attempts: int | None = None
    backoff: Callable[[int], float] | None = None
    retry_for: tuple[type[BaseException], ...] | None = None
    timeout: float | None = None
    ordering_key: str | Callable[..., str | None] | None = None
    ordered_by_commit: bool = False
    durable: bool = False
    relaxed_commit: bool | None = None
    log_level: str | None = None
    unique_key: Key | bool = None
    unique_while: str = "active"
    on_duplicate: str = "keep"
    concurrency_key: Key = None
    concurrency_limit: int | None = None
    schedule: str | None = None
    every: str | int | timedelta | None = None
    timezone: str | None = None
    missed: str = "skip"
    overlap: str = "skip"
    rate_limit: str | None = None
    rate_key: Key = None

    if TYPE_CHECKING:  # Django's own class is not generic; ours says which arguments the function takes

        def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]: ...
        async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]: ...
        def get_result(self, result_id: str) -> TaskResult[P, R]: ...
        async def aget_result(self, result_id: str) -> TaskResult[P, R]: ...

    def __post_init__(self) -> None:
        # Not super(): with slots, its cell names the class that @dataclass replaced (CPython 3.13 and older).
        Task.__post_init__(self)
        register(self)

    @classmethod
    def of(cls, task: Task) -> "PostgresTask":
        """The task itself, or a copy if it was declared while another backend was configured."""
        if isinstance(task, cls):
            return task
        return cls(**{field.name: getattr(task, field.name) for field in fields(task)})

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        ordering_key: str | None = None,
        unique_key: str | None = None,
        unique_while: str | None = None,
        on_duplicate: str | None = None,
        concurrency_key: str | None = None,
    ) -> Self:
        """A copy with other values for one call; None keeps the declared value."""
        changes: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            "ordering_key": ordering_key,
            "unique_key": unique_key,
            "unique_while": unique_while,
            "on_duplicate": on_duplicate,
            "concurrency_key": concurrency_key,
        }
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def enqueue_many(self, calls: Calls) -> Enqueued:
        """Enqueue one task for each `(args, kwargs)`, all or none; returns their ids. See `PostgresBackend`."""
        return cast("Any", self.get_backend()).enqueue_many(self, calls)

    @property
    def has_keys(self) -> bool:
        """True if its tasks may have a key besides the ordering key; others take the shorter way into the table."""
        return self.unique_key not in (None, False) or self.is_limited

    @property
    def is_limited(self) -> bool:
        """True if a limit or a rate says how many of its tasks run."""
        return self.concurrency_key is not None or self.rate_key is not None or self.rate_limit is not None

    def ordering_key_of(self, call: Call) -> str | None:
        """The ordering key of one call, or None. Raises InvalidArguments if the arguments do not give one."""
        return self._key("ordering_key", call)

    def keys_of(self, call: Call) -> Keys:
        """All keys of one call. Raises InvalidArguments if the arguments do not give one."""
        unique = key_of_arguments(self, call) if self.unique_key is True else self._key("unique_key", call)
        rate = self._key("rate_key", call) or (self.module_path[-255:] if self.rate_limit else None)
        # A task without a concurrency key waits in the line of its rate.
        return Keys(self.ordering_key_of(call), unique, self._key("concurrency_key", call) or rate, rate)

    def _key(self, option: str, call: Call) -> str | None:
        key = getattr(self, option)
        if not callable(key):
            return key or None
        what = option.replace("_", " ")
        try:
            found = key(*call.args, **call.kwargs)
        except (TypeError, LookupError, AttributeError) as error:
            raise InvalidArguments(
                f"The {what} of {self.module_path} cannot be had from these arguments ({error}): "
                f"call the task with what its `{option}` takes."
            ) from error
        return check_key(found, what)

    @property
    def is_async(self) -> bool:
        """True if the function is a coroutine function."""
        return _is_async(self.func)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Like the framework's, which inspects the function at each call: a third of a microsecond."""
        return Task.call(self, *args, **kwargs) if _is_async(self.func) else self.func(*args, **kwargs)

    @property
    def is_scheduled(self) -> bool:
        """True if it declares when it runs by itself."""
        return self.schedule is not None or self.every is not None

    def lowest_level(self) -> int | None:
        """The declared level of log lines, as a number."""
        return None if self.log_level is None else LEVELS[self.log_level]

    def attempts_allowed(self) -> int:
        """The task's own number of attempts, else the setting."""
        return conf.get("MAX_ATTEMPTS") if self.max_attempts is None else self.max_attempts


def validate(task: Task) -> None:
    """Check at declaration and again at enqueue that the task can be stored and run.

    Raises InvalidTask that names the option, its value and the allowed values.
    """
    _require(task, "priority", task.priority in PRIORITIES, "a whole number between -100 and 100")
    problem = name_problem(task.queue_name)
    _require(task, "queue_name", problem is None, f"a queue's name; this {problem}")
    run_after = task.run_after
    is_time = run_after is None or (isinstance(run_after, datetime) and run_after.year in YEARS)
    _require(task, "run_after", is_time, "a datetime, or None for now")
    if not isinstance(task, PostgresTask):
        return
    attempts, timeout, key = task.max_attempts, task.timeout, task.ordering_key
    is_count = attempts is None or (type(attempts) is int and attempts in MAX_ATTEMPTS)
    _require(task, "max_attempts", is_count, "a whole number, 1 to 1000")
    is_duration = timeout is None or (type(timeout) in (int, float) and 0 < timeout < math.inf)
    _require(task, "timeout", is_duration, "a number of seconds above 0")
    is_backoff = task.backoff is None or callable(task.backoff)
    _require(task, "backoff", is_backoff, "a callable of the attempt's number")
    is_classes = task.retry_for is None or (
        isinstance(task.retry_for, tuple) and all(isclass(e) and issubclass(e, BaseException) for e in task.retry_for)
    )
    _require(task, "retry_for", is_classes, "a tuple of exception classes")
    problem = None if key is None or callable(key) else name_problem(key)
    _require(task, "ordering_key", problem is None, f"text or a callable of the arguments; this {problem}")
    if task.has_keys or (task.unique_while, task.on_duplicate, task.concurrency_limit) != NO_KEYS:
        _require_keys(task)
    is_level = task.log_level is None or task.log_level in LEVELS
    _require(task, "log_level", is_level, f"one of {', '.join(LEVELS)}")
    for flag in ("ordered_by_commit", "durable"):
        _require(task, flag, isinstance(getattr(task, flag), bool), "True or False")
    is_flag = task.relaxed_commit is None or isinstance(task.relaxed_commit, bool)
    _require(task, "relaxed_commit", is_flag, "True, False, or None for the setting")
    if (task.schedule, task.every, task.timezone, task.missed, task.overlap) != (None, None, None, "skip", "skip"):
        _check_schedule(task)


def _check_schedule(task: PostgresTask) -> None:
    _require(task, "missed", task.missed in MISSED, f"one of {', '.join(MISSED)}")
    _require(task, "overlap", task.overlap in OVERLAP, f"one of {', '.join(OVERLAP)}")
    option = "schedule" if task.every is None else "every"
    try:
        recurrence(task.schedule, task.every, task.timezone)
    except InvalidSchedule as error:
        raise InvalidTask(f"{option} cannot be read: {error} ({task.module_path} declares it.)") from error
    if problem := call_problem(task, (), {}):
        raise InvalidTask(
            f"A declared schedule calls its task without arguments: {problem}. Give {task.module_path} defaults, or "
            "add a schedule with arguments by `add_schedule`."
        )


def call_problem(task: PostgresTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The reason why the function does not take these arguments, or None."""
    try:
        signature(task.func).bind(*((None,) if task.takes_context else ()), *args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def _require_keys(task: PostgresTask) -> None:
    for option in ("unique_key", "concurrency_key", "rate_key"):
        key = getattr(task, option)
        is_other = key is None or callable(key) or (option == "unique_key" and isinstance(key, bool))
        problem = None if is_other else name_problem(key)
        _require(task, option, problem is None, f"text or a callable of the arguments; this {problem}")
    for option, values in (("unique_while", UNIQUE_WHILE), ("on_duplicate", ON_DUPLICATE)):
        _require(task, option, getattr(task, option) in values, " or ".join(map(repr, values)))
    limit = task.concurrency_limit
    is_limit = limit is None or (
        type(limit) is int and limit in CONCURRENCY_LIMITS and task.concurrency_key is not None
    )
    _require(task, "concurrency_limit", is_limit, "a whole number, 1 to 10000, beside a concurrency_key")
    is_rate = task.rate_limit is None or durations.rate_of(task.rate_limit) is not None
    _require(task, "rate_limit", is_rate, "text like '100/m': a whole number, and s, m, h or d")
    is_one = task.ordering_key is None or not task.is_limited
    _require(task, "ordering_key", is_one, "left out beside a concurrency_key or a rate: an order is a limit of one")


def _require(task: Task, option: str, is_met: bool, demand: str) -> None:
    if not is_met:
        raise InvalidTask(f"{option} must be {demand}. ({task.module_path} has {getattr(task, option)!r}.)")


BASE_SECONDS = 2.0
CAP_SECONDS = 3600.0


def exponential(attempt: int, *, random: float | None = None) -> float:
    """Seconds to wait after attempt number `attempt` failed: doubling from 2 s, at most an hour, half of it jitter.

    `random` in [0, 1) fixes the jitter. Without jitter, tasks that failed together would fail together again.

    >>> [exponential(attempt, random=0.5) for attempt in (1, 2, 3)]
    [1.5, 3.0, 6.0]
    >>> exponential(40, random=0.999) <= CAP_SECONDS
    True
    """
    whole = min(CAP_SECONDS, BASE_SECONDS * 2 ** (min(attempt, 30) - 1))
    jitter = default_random.random() if random is None else random  # noqa: S311  not for secrets
    return whole * (0.5 + jitter / 2)
