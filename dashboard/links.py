"""Links that several pages use."""

from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import NoReverseMatch
from django.utils.html import conditional_escape, format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString

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


def history(target: str, text: str) -> SafeString:
    """This text as a link to what people did with the target, which the audit names so."""
    return anchor(text, page("admin:ops_audit", target=target))


def anchor(text: str, url: str) -> SafeString:
    return format_html('<a href="{}">{}</a>', url, text)


def sentence(text: str, **values: Any) -> SafeString:
    """A sentence of ours with these values, which are escaped unless they are safe."""
    return SafeString(text % {name: conditional_escape(value) for name, value in values.items()})  # nosec B703


def back_to(request: HttpRequest, usual: str) -> str:
    """The page with the pressed button, including its filter; the usual one if the form names no operators' page."""
    wanted, overview = request.POST.get("next", ""), address("admin:index")
    is_ours = wanted == overview or wanted.startswith((address("admin:tasks_task_changelist"), f"{overview}ops/"))
    return wanted if is_ours and url_has_allowed_host_and_scheme(wanted, allowed_hosts=None) else usual


def is_overview(url: str) -> bool:
    return url == address("admin:index")


def limit(key: str) -> str:
    """The page of limits with this key alone."""
    return page("admin:ops_limits", key=key)


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
