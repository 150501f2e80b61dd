"""The filter for actions and lists of tasks: parsing and query, for pages and commands."""

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import urlencode

from django.db import transaction
from django.db.models import F, Lookup, OuterRef, Q, Subquery, TextField, Value
from django.db.models.functions import Cast, Concat
from django.http import QueryDict
from django.utils.dateparse import parse_datetime

from tasks.exceptions import RowlockError
from tasks.framework.redacted_calls import redact_call
from tasks.models import Attempt, Task, TaskQuerySet, TaskStatus
from tasks.support import durations, reading
from tasks.support.durations import StatementTimestamp

BIGGEST_ID = 2**63 - 1
HASH = re.compile(r"[0-9a-f]{12}")
# Each is an index's condition, and together they cover every READY row, so the planner can use these indexes.
IS_READY = Q(status=TaskStatus.READY) & (
    Q(ordering_key__isnull=True, concurrency_key__isnull=True)
    | Q(ordering_key__isnull=False)
    | Q(concurrency_key__isnull=False)
)


IS_DUE = Q(run_after__lte=StatementTimestamp())
DUE = ("now", "later")


class InvalidFilter(RowlockError, ValueError):
    """A condition of the filter cannot be read."""


class Params(Protocol):
    """The part of Django's QueryDict from which a filter is read."""

    def getlist(self, key: str) -> list[str]: ...


@dataclass(frozen=True, kw_only=True)
class TaskFilter:
    """Tasks that match every given condition; within one condition, any of its values.

    `error` is searched, ignoring case, in the exception and traceback of the latest recorded attempt. `failure` is the
    hash of its fingerprint. `older_than` counts from the creation of the task. `due`: "now" or "later", of the tasks
    that wait to run. `text` is searched in the arguments as shown, so that a search cannot guess redacted values: see
    `shows`. `above` and `upto` bound ids.
    """

    ids: tuple[int, ...] = ()
    statuses: tuple[str, ...] = ()
    due: str = ""
    queue_names: tuple[str, ...] = ()
    task_paths: tuple[str, ...] = ()
    error: str = ""
    failure: str = ""
    older_than: timedelta | None = None
    text: str = ""
    ordering_key: str = ""
    concurrency_key: str = ""
    worker_id: str = ""
    above: int = 0
    upto: int | None = None

    @classmethod
    def of(cls, selection: "Iterable[int] | TaskFilter") -> "TaskFilter":
        """The filter itself, or a filter for these ids (each once, in the order given)."""
        if isinstance(selection, TaskFilter):
            return selection
        return cls(ids=tuple(dict.fromkeys(selection)))

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Read a URL's query; `id`, `status`, `queue` and `task` may repeat. Raises InvalidFilter."""
        values: dict[str, Any] = {}
        for field, condition in CONDITIONS.items():
            read = tuple(dict.fromkeys(map(condition.parse, given(params, condition.param))))
            if read:
                values[field] = read if condition.may_repeat else read[0]
        return cls(**values)

    @classmethod
    def from_query(cls, query: str) -> Self:
        """Read a URL's query, as written by `as_query`. Raises InvalidFilter."""
        return cls.from_params(QueryDict(query))

    def as_query(self) -> str:
        """The query of the list's URL."""
        return urlencode(self.as_params())

    def as_params(self) -> list[tuple[str, str]]:
        """The pairs of a URL's query that `from_params` reads back."""
        return [(condition.param, text) for condition, text in self._texts()]

    def as_words(self) -> list[str]:
        """Ids and options of a command that select the same tasks."""
        return [word for condition, text in self._texts() for word in (condition.option, text) if word]

    def _texts(self) -> "Iterator[tuple[Condition, str]]":
        """Each given condition with the text of each of its values."""
        for field, condition in CONDITIONS.items():
            value = getattr(self, field)
            for each in value if condition.may_repeat else (value,):
                if each not in ("", None):
                    yield condition, durations.describe(each) if isinstance(each, timedelta) else str(each)

    @property
    def is_empty(self) -> bool:
        """True without any condition, so that every task would match."""
        return self == type(self)()

    def with_statuses(self, *statuses: str) -> Self:
        """The same filter with only these statuses."""
        return replace(self, statuses=statuses)

    def within(self, upto: int, above: int = 0) -> Self:
        """The same filter between two ids: above `above`, up to and including `upto`."""
        return replace(self, upto=upto, above=above)

    def queryset(self) -> TaskQuerySet:
        """The matching tasks, unordered. Never `filter(**request)`: no value may become a field's name."""
        tasks = Task.objects.all()
        if self.ids:
            tasks = tasks.filter(among(self.ids))
        return self.criteria(tasks)

    def criteria(self, tasks: TaskQuerySet) -> TaskQuerySet:
        """`tasks` narrowed by every condition but the ids; these must still hold when a row is locked."""
        tasks = self._in_state(tasks)
        if self.queue_names:
            tasks = tasks.filter(queue_name__in=self.queue_names)
        if self.task_paths:
            tasks = tasks.filter(task_path__in=self.task_paths)
        if self.error:
            latest = Attempt.objects.filter(task=OuterRef("pk")).order_by("-id")
            text = Concat("exception_class", Value("\n", TextField()), "traceback")
            tasks = tasks.alias(error=Subquery(latest.values(text=text)[:1])).filter(error__icontains=self.error)
        if self.failure:
            unsuccessful = Attempt.objects.filter(task=OuterRef("pk")).exclude(outcome="released").order_by("-id")
            tasks = tasks.alias(failure=Subquery(unsuccessful.values("fingerprint")[:1]))
            tasks = tasks.filter(failure__startswith=f"{self.failure} ")
        if self.older_than is not None:
            tasks = tasks.filter(created_at__lt=StatementTimestamp() - self.older_than)
        if self.ordering_key:
            tasks = tasks.filter(ordering_key=self.ordering_key)
        if self.concurrency_key:
            tasks = tasks.filter(concurrency_key=self.concurrency_key)
        if self.worker_id:
            tasks = tasks.filter(Q(claimed_by=self.worker_id) | Q(finished_by=self.worker_id))
        if self.text:
            tasks = tasks.alias(args_text=Cast("args", TextField()), kwargs_text=Cast("kwargs", TextField()))
            tasks = tasks.filter(Q(args_text__icontains=self.text) | Q(kwargs_text__icontains=self.text))
        return tasks if self.upto is None else tasks.filter(pk__gt=self.above, pk__lte=self.upto)

    def _in_state(self, tasks: TaskQuerySet) -> TaskQuerySet:
        if self.statuses:
            tasks = tasks.filter(status__in=self.statuses)
        if self.statuses == (TaskStatus.READY,):
            tasks = tasks.filter(IS_READY)
        if self.due:
            tasks = tasks.filter(IS_DUE if self.due == "now" else ~IS_DUE)
        return tasks

    def shows(self, task: Task) -> bool:
        """True if the searched text is in the shown part of the arguments."""
        if not self.text:
            return True
        shown = json.dumps(redact_call(task.task_path, task.args, task.kwargs), ensure_ascii=False)
        return self.text.casefold() in shown.casefold()

    def selected_ids(self) -> "array[int]":
        """The ids to act on, eight bytes each: the given ones, else those that match now, in order.

        One statement without LIMIT: with it, the planner may walk ten million finished rows in search of a few. One
        transaction, so that its cursor works behind a pooling proxy.
        """
        if self.ids:
            return array("q", self.ids)
        with transaction.atomic():
            ids = self.queryset().order_by("id").values_list("id", flat=True)
            return array("q", ids.iterator(chunk_size=10_000))


class Among(Lookup):
    """`lhs = ANY(array)`: `id__in` makes a parameter of each id, and a statement allows at most 65,535."""

    lookup_name = "among"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        lhs, params = self.process_lhs(compiler, connection)
        return f"{lhs} = ANY(%s::bigint[])", (*params, self.rhs)


def among(ids: Iterable[int]) -> Q:
    """Tasks with one of these ids."""
    return Q(Among(F("id"), list(ids)))


def given(params: Params, key: str) -> tuple[str, ...]:
    """The non-blank values of `key`. Raises InvalidFilter for text that PostgreSQL cannot store."""
    values = tuple(value for value in params.getlist(key) if value.strip())
    for value in values:
        if problem := reading.storage_problem(value):
            raise InvalidFilter(f"The filter `{key}` {problem}.")
        if len(value) > reading.LONGEST_CONDITION:
            raise InvalidFilter(f"The filter `{key}` has more than {reading.LONGEST_CONDITION} characters: shorten it.")
    return values


def parse_id(text: str) -> int:
    """A task's id. Raises InvalidFilter unless it is a whole number in the column's range."""
    number = reading.digits(text.strip())
    if number is None or not 1 <= number <= BIGGEST_ID:
        raise InvalidFilter(f"{reading.shown(text)} is not the id of a task: ids are whole numbers from 1, like 4711.")
    return number


def parse_status(text: str) -> str:
    """A status, in any case. Raises InvalidFilter with the known ones."""
    status = text.strip().upper()
    if status not in TaskStatus.values:
        raise InvalidFilter(f"{text!r} is not a status: choose one of {', '.join(TaskStatus.values)}.")
    return status


def parse_due(text: str) -> str:
    """One of DUE. Raises InvalidFilter with both."""
    if text not in DUE:
        raise InvalidFilter(f"{text!r} is not a time to run: choose now or later.")
    return text


def parse_age(text: str) -> timedelta:
    """A duration such as 7d. Raises InvalidFilter with examples."""
    try:
        return durations.parse(text)
    except ValueError as error:
        raise InvalidFilter(str(error)) from error


def parse_moment(text: str) -> datetime | timedelta | None:
    """An age, or a time (UTC without an offset); None from an empty text. Raises InvalidFilter with examples."""
    if not text:
        return None
    try:
        at = parse_datetime(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)) if at else durations.parse(text)
    except ValueError as error:
        raise InvalidFilter(
            f"{text!r} is neither an age, like 12h or 7d, nor a time, like 2026-11-20T03:10Z."
        ) from error


def parse_failure(text: str) -> str:
    """The hash of a fingerprint. Raises InvalidFilter for anything else."""
    if not HASH.fullmatch(text):
        raise InvalidFilter(f"{reading.shown(text)} is not a failure: its hash has 12 digits of 0-9 and a-f.")
    return text


class Condition(NamedTuple):
    """One condition of a filter: its parameter in a URL, its option of a command, and the reader of its value."""

    param: str
    option: str
    parse: Callable[[str], Any] = str
    may_repeat: bool = False


CONDITIONS = {
    "ids": Condition("id", "", parse_id, may_repeat=True),
    "statuses": Condition("status", "--status", parse_status, may_repeat=True),
    "due": Condition("due", "--due", parse_due),
    "queue_names": Condition("queue", "--queue", may_repeat=True),
    "task_paths": Condition("task", "--task", may_repeat=True),
    "error": Condition("error", "--error"),
    "failure": Condition("failure", "--failure", parse_failure),
    "older_than": Condition("older_than", "--older-than", parse_age),
    "text": Condition("q", "--text"),
    "ordering_key": Condition("key", "--ordering-key"),
    "concurrency_key": Condition("limit", "--concurrency-key"),
    "worker_id": Condition("worker", "--worker"),
}
