"""Links that several pages use."""

from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from django.urls import NoReverseMatch

from tasks.operations.filters import TaskFilter
from tasks.support.addresses import address


def tasks(**conditions: Any) -> str:
    """The list of matching tasks: `tasks(statuses=("FAILED",), queue_names=("mail",))`."""
    return listed(TaskFilter(**conditions))


def listed(chosen: TaskFilter) -> str:
    """The list of tasks with this filter."""
    query = chosen.as_query()
    return f"{address('admin:tasks_task_changelist')}{'?' if query else ''}{query}"


def worker(worker_id: str) -> str:
    """The worker's row on the page of workers, which shows it even if it has ended."""
    return f"{page('admin:ops_workers', worker=worker_id)}#worker-{element_id(worker_id)}"


def schedule(name: str) -> str:
    """The schedule's row on the page of schedules; empty if this site has no such page."""
    url = page("admin:ops_schedule", q=name)
    return url and f"{url}#schedule-{element_id(name)}"


def element_id(name: str) -> str:
    """The name of a queue, worker or schedule as part of an HTML id."""
    return sha256(name.encode()).hexdigest()[:12]


def page(name: str, *args: Any, **params: Any) -> str:
    """The address of a page with its query; empty if this site has no such page."""
    try:
        url = address(name, *args)
    except NoReverseMatch:
        return ""
    return f"{url}?{urlencode(params)}" if params else url
