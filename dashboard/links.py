"""Links that several pages use."""

from typing import Any
from urllib.parse import urlencode

from django.urls import NoReverseMatch

from tasks.operations.filters import TaskFilter
from tasks.support.addresses import address


def tasks(**conditions: Any) -> str:
    """The list of matching tasks: `tasks(statuses=("FAILED",), queue_names=("mail",))`."""
    return f"{address('admin:tasks_task_changelist')}?{urlencode(TaskFilter(**conditions).as_params())}"


def page(name: str, *args: Any, **params: Any) -> str:
    """The address of a page with its query; empty if this site has no such page."""
    try:
        url = address(name, *args)
    except NoReverseMatch:
        return ""
    return f"{url}?{urlencode(params)}" if params else url
