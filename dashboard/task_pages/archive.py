"""The list of archived tasks, and the page that runs one of them again.

Each search is one index's order within the months that can match: newest end first, below a cursor.
"""

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import ClassVar, NamedTuple, Self
from urllib.parse import urlencode

from django.contrib import messages
from django.db import OperationalError, connection
from django.db.models import Func, Q, QuerySet, TextField
from django.db.transaction import atomic
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.task_pages import VIEW
from dashboard.task_pages.enqueue import ENQUEUE
from dashboard.task_pages.listing import at_of
from dashboard.task_pages.rows import call_of, times_of
from dashboard.task_pages.tabs import tabs
from dashboard.templatetags.rowlock import age
from tasks import operations
from tasks.admin import rights
from tasks.admin.forms import ConfirmedForm
from tasks.exceptions import RowlockError
from tasks.framework import declaration
from tasks.models import FINISHED, ArchivedTask
from tasks.operations import tokens
from tasks.operations.archived import again
from tasks.operations.filters import InvalidFilter, Params, given, parse_id, parse_moment, parse_status
from tasks.operations.search import LIMIT_STATEMENT, PAGE, SEARCH_SECONDS
from tasks.support import database
from tasks.support.addresses import address
from tasks.support.database import fetch, is_cancelled

KEYS = ("ordering_key", "unique_key")


class LastError(Func):
    """The class of the exception that ended the task's last attempt."""

    template = "attempts -> -1 ->> 'exception_class'"
    output_field: ClassVar[TextField] = TextField()


class Cursor(NamedTuple):
    """A page lies below this task, by the end of tasks and then by id."""

    finished_at: datetime
    id: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the output of `str`. Raises InvalidFilter for anything else."""
        at, _, number = text.partition("/")
        try:
            found = datetime.fromisoformat(at)
        except ValueError:
            found = None
        if found is None or found.tzinfo is None:
            raise InvalidFilter("A page lies `before` a time and an id, as the link of the page before it says.")
        return cls(found, parse_id(number))

    def __str__(self) -> str:
        return f"{self.finished_at.isoformat()}/{self.id}"


@dataclass(frozen=True, kw_only=True)
class ArchiveFilter:
    """Conditions that an archived task must meet. `since`, `until`: of its end, an age like 7d or a time.

    `key` is its ordering key or its unique key.
    """

    id: str = ""
    task: str = ""
    key: str = ""
    status: str = ""
    since: str = ""
    until: str = ""

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Read a URL's query, with the fields as parameters. Raises InvalidFilter."""
        values = {field.name: next(iter(given(params, field.name)), "").strip() for field in fields(cls)}
        if values["id"]:
            values["id"] = str(parse_id(values["id"].removeprefix("#")))
        if values["status"]:
            values["status"] = parse_status(values["status"])
        parse_moment(values["since"]), parse_moment(values["until"])
        return cls(**values)

    @property
    def is_empty(self) -> bool:
        return self == type(self)()

    def query(self, **more: str) -> str:
        """The query of the page's URL."""
        return "?" + urlencode([(name, value) for name, value in {**asdict(self), **more}.items() if value])

    def querysets(self, before: Cursor | None, most: int) -> list[QuerySet[ArchivedTask]]:
        """The first `most` tasks that match below a cursor; one for each kind of key, as each has its own index."""
        tasks = ArchivedTask.objects.annotate(error=LastError())
        if self.id:
            tasks = tasks.filter(pk=int(self.id))
        if self.task:
            tasks = tasks.filter(task_path=self.task)
        if self.status:
            tasks = tasks.filter(status=self.status)
        if self.since:
            tasks = tasks.filter(finished_at__gte=at_of(self.since))
        if self.until:
            tasks = tasks.filter(finished_at__lt=at_of(self.until))
        if before:
            tasks = tasks.filter(finished_at__lte=before.finished_at)
            tasks = tasks.exclude(finished_at=before.finished_at, pk__gte=before.id)
        tasks = tasks.order_by("-finished_at", "-pk")
        conditions = [Q(**{column: self.key}) for column in KEYS] if self.key else [Q()]
        return [tasks.filter(condition)[:most] for condition in conditions]


def find(chosen: ArchiveFilter, before: Cursor | None, most: int) -> list[ArchivedTask]:
    """The first `most` tasks that match, newest end first. Raises OperationalError if it takes too long."""
    found: dict[int, ArchivedTask] = {}
    with atomic():
        fetch(connection, LIMIT_STATEMENT, {"milliseconds": str(int(1000 * SEARCH_SECONDS))})
        for tasks in chosen.querysets(before, most):
            found |= {task.pk: task for task in tasks}
    return sorted(found.values(), key=lambda task: Cursor(task.finished_at, task.pk), reverse=True)[:most]


@dataclass(frozen=True, kw_only=True)
class ArchivedRow:
    """One line of the list. `outcome`: the exception of a failed task, or how long a completed one ran and waited."""

    id: str
    task_path: str
    name: str
    call: str
    status: str
    outcome: str
    queue_name: str
    attempts: str
    finished: SafeString | str
    archived: SafeString | str

    @classmethod
    def of(cls, archived: ArchivedTask, now: datetime) -> Self:
        task = archived.as_task()
        return cls(
            id=str(task.pk),
            task_path=task.task_path,
            name=task.task_path.rpartition(".")[2],
            call=call_of(task),
            status=task.status,
            outcome=times_of(task) or getattr(archived, "error", None) or "",
            queue_name=task.queue_name,
            attempts=f"{task.attempt}/{task.max_attempts}",
            finished=age(task.finished_at, now),
            archived=age(archived.archived_at, now),
        )


@require_safe
def list_view(request: HttpRequest) -> HttpResponse:
    """The list; its URL holds the filter and the page."""
    rights.require(request.user, VIEW)
    chosen, rows, fault = ArchiveFilter(), list[ArchivedTask](), ""
    try:
        chosen = ArchiveFilter.from_params(request.GET)
        rows = find(chosen, next(map(Cursor.parse, given(request.GET, "before")), None), PAGE + 1)
    except InvalidFilter as error:
        fault = str(error)
    except OperationalError as error:
        if not is_cancelled(error):
            raise
        fault = _("The search ran out of time. Name a task or a key, or a shorter time.")
    now, shown = database.now(connection), rows[:PAGE]
    last = Cursor(shown[-1].finished_at, shown[-1].pk) if len(rows) > PAGE else None
    context = {
        "fault": fault,
        "chosen": chosen,
        "statuses": FINISHED,
        "paths": declaration.paths(),
        "rows": [ArchivedRow.of(task, now) for task in shown],
        "tabs": tabs(snapshots.of(request), is_archive=True),
        "older": chosen.query(before=str(last)) if last else "",
    }
    return page(request, "task_pages/archive.html", _("Archived tasks"), context, status=400 if fault else 200)


@require_POST
def again_view(request: HttpRequest, task_id: int) -> HttpResponse:
    """Ask first; with `confirmed` enqueue a new task like the archived one, and lead to it."""
    rights.require(request.user, ENQUEUE)
    archived = ArchivedTask.find(task_id)
    if archived is None:
        raise Http404(_("No archived task has the id %(id)d.") % {"id": task_id})
    is_confirmed = "confirmed" in request.POST
    form, fault = ConfirmedForm(request.POST if is_confirmed else None), ""
    if is_confirmed and form.is_valid():
        who, reason = rights.who(request.user), form.cleaned_data["reason"]
        try:
            made = tokens.once(
                form.cleaned_data["token"], lambda: str(operations.run_again(task_id, who, reason=reason))
            )
        except RowlockError as error:
            fault = str(error)
        else:
            messages.success(request, _("Enqueued as #%(id)s.") % {"id": made.target})
            return HttpResponseRedirect(address("admin:tasks_task_change", made.target))
    elif is_confirmed:
        fault = " ".join(str(text) for texts in form.errors.values() for text in texts)
    context = {"id": task_id, "path": archived.task_path, "form": form, "fault": fault, "command": again(task_id)}
    return page(request, "task_pages/again.html", _("Run again"), context, status=400 if fault else 200)
