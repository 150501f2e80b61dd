"""The filter of the list of tasks, in its page's URL and in the bulk actions that start there."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any, Self
from urllib.parse import urlencode

from django.db.models import Q, TextField
from django.db.models.functions import Cast
from django.http import QueryDict

from tasks.filters import Params, TaskFilter, given
from tasks.models import Task, TaskStatus
from tasks.querysets import TaskQuerySet
from tasks.redaction import redact_call

# Each is an index's condition, and together they cover every READY row, so the planner can use these indexes.
IS_READY = Q(status=TaskStatus.READY) & (Q(ordering_key__isnull=True) | Q(ordering_key__isnull=False))


@dataclass(frozen=True, kw_only=True)
class ListFilter(TaskFilter):
    """The conditions of the list: those of TaskFilter, and three more.

    `text` is searched, ignoring case, in the arguments as shown, so that a search cannot guess redacted values.
    """

    text: str = ""
    ordering_key: str = ""
    worker_id: str = ""

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Like TaskFilter, plus `q`, `key` and `worker`. Raises InvalidFilter."""
        more = {name: next(iter(given(params, name)), "") for name in ("q", "key", "worker")}
        common = super().from_params(params)
        return replace(common, text=more["q"], ordering_key=more["key"], worker_id=more["worker"])

    @classmethod
    def from_query(cls, query: str) -> Self:
        """Read a URL's query, as written by `as_query`. Raises InvalidFilter."""
        return cls.from_params(QueryDict(query))

    def as_query(self) -> str:
        """The query of the list's URL."""
        return urlencode(self.as_params())

    def as_params(self) -> list[tuple[str, str]]:
        own = [("q", self.text), ("key", self.ordering_key), ("worker", self.worker_id)]
        return super().as_params() + [(name, value) for name, value in own if value]

    def criteria(self, tasks: TaskQuerySet) -> TaskQuerySet:
        tasks = super().criteria(tasks)
        if self.statuses == (TaskStatus.READY,):
            tasks = tasks.filter(IS_READY)
        if self.ordering_key:
            tasks = tasks.filter(ordering_key=self.ordering_key)
        if self.worker_id:
            tasks = tasks.filter(Q(claimed_by=self.worker_id) | Q(finished_by=self.worker_id))
        if self.text:
            tasks = tasks.alias(args_text=Cast("args", TextField()), kwargs_text=Cast("kwargs", TextField()))
            tasks = tasks.filter(Q(args_text__icontains=self.text) | Q(kwargs_text__icontains=self.text))
        return tasks

    def shows(self, task: Task) -> bool:
        """True if the searched text is in the shown part of the arguments."""
        if not self.text:
            return True
        shown = json.dumps(redact_call(task.task_path, task.args, task.kwargs), ensure_ascii=False)
        return self.text.casefold() in shown.casefold()


@dataclass(frozen=True, kw_only=True)
class BoundedFilter(ListFilter):
    """The same between two ids: above `above`, up to and including `upto`."""

    above: int = 0
    upto: int

    @classmethod
    def within(cls, chosen: ListFilter, upto: int, above: int = 0) -> Self:
        """Bound `chosen` to these ids."""
        conditions: dict[str, Any] = {field.name: getattr(chosen, field.name) for field in fields(ListFilter)}
        return cls(**conditions, above=above, upto=upto)

    def criteria(self, tasks: TaskQuerySet) -> TaskQuerySet:
        return super().criteria(tasks).filter(pk__gt=self.above, pk__lte=self.upto)
