"""The palette (Ctrl-K): the task, session, order, account, worker, queue, schedule or page that a few characters name.

The pages of the menu and the actions of the open page come from that page itself (`palette.js`). A number may follow a
word: `order 12` lists the order before the task and the session of that number.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from dashboard import links
from dashboard.locks.limits import Names
from dashboard.task_pages.listing import known_queues
from tasks import panels
from tasks.models import ArchivedTask, Schedule, Task
from tasks.panels import WatchedModel
from tasks.support.addresses import address
from tasks.support.database import fetch

MOST = 6  # of a kind
LONGEST = 100  # characters of a question
LARGEST_ID = 2**63 - 1

SESSION = """
SELECT pid, coalesce(nullif(application_name, ''), backend_type) AS name FROM pg_stat_activity
WHERE pid = %(pid)s AND datname = current_database()
"""
WORKERS = """
SELECT id, hostname, pid FROM tasks_worker
WHERE stopped_at IS NULL
    AND (starts_with(id, %(text)s) OR starts_with(hostname, %(text)s) OR pid::text = %(text)s)
ORDER BY id LIMIT %(most)s
"""

FUNCTIONS = """
SELECT DISTINCT path FROM tasks_worker, unnest(task_paths) AS path
WHERE stopped_at IS NULL AND strpos(lower(path), lower(%(text)s)) > 0 ORDER BY path LIMIT %(most)s
"""

# Pages that the menu does not name.
PAGES = (
    (gettext_lazy("Enqueue a task"), "admin:tasks_task_enqueue", "tasks.view_task"),
    (gettext_lazy("Run a burst"), "admin:ops_burst", "tasks.view_task"),
    (gettext_lazy("Bulk runs"), "admin:tasks_task_runs", "tasks.view_task"),
    (gettext_lazy("Lock history"), "admin:ops_lock_history", "dashboard.view_backend"),
    (gettext_lazy("Alerts"), "admin:ops_alerts", "dashboard.configure_alerts"),
    (gettext_lazy("Patterns"), "admin:ops_lab_patterns", "dashboard.view_labrun"),
)

Found = Iterable[tuple[str, str]]  # label, URL


class Source(NamedTuple):
    """Answers for one kind of thing. `permission`: who may see it; `tables`: left out while one of these is locked."""

    permission: str
    tables: tuple[str, ...]
    find: Callable[[str], Found]


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("ops/palette/", view(palette), name="ops_palette")]


@require_safe
def palette(request: HttpRequest) -> JsonResponse:
    """`{"found": [{"label", "url"}]}` for `?q=`; one short question a kind, and none to a locked table."""
    text = request.GET.get("q", "").strip()[:LONGEST]
    found = [*named(text, request.user), *pages(text, request.user)] if text else []
    return JsonResponse({"found": [{"label": label, "url": url} for label, url in found]})


def named(text: str, user: AbstractBaseUser | AnonymousUser) -> list[tuple[str, str]]:
    """Places that this text or number names; first the kind that the word before the number names."""
    names = Names(connection)
    found: list[tuple[str, str]] = []
    word, _space, number = text.lower().rpartition(" ")
    number = number.removeprefix("#")
    is_number = number.isascii() and number.isdecimal() and int(number) <= LARGEST_ID
    for source in of_numbers() if is_number else TEXTS:
        if user.has_perm(source.permission):  # type: ignore[union-attr]
            found += names.ask(partial(list, source.find(number if is_number else text)), *source.tables) or ()
    return sorted(found, key=lambda one: not one[0].lower().startswith(word)) if is_number else found


def pages(text: str, user: AbstractBaseUser | AnonymousUser) -> Iterator[tuple[str, str]]:
    for label, url_name, permission in PAGES:
        if text.lower() in label.lower() and user.has_perm(permission):  # type: ignore[union-attr]
            yield str(label), address(url_name)


def task(number: str) -> Found:
    known = (model._default_manager.filter(pk=number) for model in (Task, ArchivedTask))
    for row in chain.from_iterable(found.values("pk", "task_path", "status") for found in known):
        label = _("Task #%(id)s %(name)s") % {"id": row["pk"], "name": row["task_path"].rpartition(".")[2]}
        yield f"{label} · {row['status']}", address("admin:tasks_task_change", row["pk"])


def session(number: str) -> Found:
    if int(number) < 2**31:
        for row in fetch(connection, SESSION, {"pid": int(number)}):
            label = _("Session %(pid)s %(name)s") % row
            yield label, f"{address('admin:ops_locks')}#node-{row['pid']}"


def watched(watched: WatchedModel, number: str) -> Found:
    """The row of a model that an app has registered, if this site shows it."""
    for pk in watched.model._default_manager.filter(pk=number).values_list("pk", flat=True):
        if url := links.page(watched.url_name, pk):
            yield str(watched.label) % {"id": pk}, url


def queues(text: str) -> Found:
    matching = [name for name in known_queues() if text.lower() in name.lower()]
    for name in matching[:MOST]:
        yield _("Queue %(name)s") % {"name": name}, links.tasks(queue_names=(name,))


def workers(text: str) -> Found:
    for row in fetch(connection, WORKERS, {"text": text, "most": MOST}):
        yield _("Worker %(id)s (%(hostname)s, pid %(pid)s)") % row, links.worker(row["id"])


def schedules(text: str) -> Found:
    for name in Schedule.objects.filter(name__icontains=text).order_by("name").values_list("name", flat=True)[:MOST]:
        yield _("Schedule %(name)s") % {"name": name}, links.schedule(name)


def functions(text: str) -> Found:
    for row in fetch(connection, FUNCTIONS, {"text": text, "most": MOST}):
        yield _("Tasks %(name)s") % {"name": row["path"]}, links.tasks(task_paths=(row["path"],))


def of_numbers() -> Iterator[Source]:
    """The sources of numbers."""
    panels.load()
    yield Source("tasks.view_task", ("tasks_task", "tasks_archive"), task)
    yield Source("dashboard.view_backend", (), session)
    for one in panels.WATCHED:
        yield Source(one.permission, (one.model._meta.db_table,), partial(watched, one))
    yield Source("tasks.view_worker", ("tasks_worker",), workers)


TEXTS = (
    Source("tasks.view_task", ("tasks_task", "tasks_queue", "tasks_worker"), queues),
    Source("tasks.view_worker", ("tasks_worker",), workers),
    Source("tasks.view_task", ("tasks_worker",), functions),
    Source("tasks.view_schedule", ("tasks_schedule",), schedules),
)
