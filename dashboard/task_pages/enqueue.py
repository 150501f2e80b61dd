"""The page that enqueues a registered task, with the same checks and error messages as `enqueue_task`."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from dashboard.layout import page
from dashboard.task_pages import CHANGED_FORM, VIEW, rejected, signature
from dashboard.task_pages.listing import known_queues
from tasks import operations
from tasks.admin import rights
from tasks.admin.forms import ConfirmedForm, OptionField
from tasks.commands import types
from tasks.compat import InvalidTask
from tasks.diagnosis.finding import command
from tasks.exceptions import InternalTask, RowlockError, UnknownTask
from tasks.framework import declaration
from tasks.framework.arguments import Enqueued
from tasks.framework.declaration import PostgresTask
from tasks.operations import tokens
from tasks.operations.enqueue import registered
from tasks.support import reading
from tasks.support.addresses import address
from tasks.support.audit import Who
from tasks.support.redaction import REDACTED, SecretFinder

ENQUEUE = "tasks.enqueue_task"
OPTIONS = ("queue_name", "priority", "run_after", "ordering_key", "unique_key")


class CallForm(ConfirmedForm):
    """One call of a task: a field for each parameter; without a task none."""

    def __init__(self, task: PostgresTask | None, data: QueryDict | None = None, **options: Any) -> None:
        super().__init__(data, **options)
        self.argument_task = task
        self.argument_fields = signature.fields_of(task) if task else {}
        own = list(self.fields)
        self.fields |= self.argument_fields
        self.call: tuple[list[Any], dict[str, Any]] = ([], {})
        self.order_fields([*self.argument_fields, *own])

    def clean(self) -> None:
        if self.argument_task and not self.errors:
            try:
                self.call = signature.call_of(self.argument_task, self.cleaned_data)
            except signature.IncompleteCall as error:
                self.add_error(None, str(error))

    def arguments(self) -> list[forms.BoundField]:
        return [self[name] for name in self.argument_fields]


class EnqueueForm(CallForm):
    """One call, and values that differ from the task's declaration."""

    queue_name = OptionField(
        types.destination, label=gettext_lazy("Queue"), widget=forms.TextInput(attrs={"list": "queues"})
    )
    priority = OptionField(types.priority, label=gettext_lazy("Priority, -100 to 100"))
    run_after = OptionField(types.moment, label=gettext_lazy("Not before, like 2030-01-31T03:00:00+02:00"))
    ordering_key = OptionField(types.name, label=gettext_lazy("Ordering key"))
    unique_key = OptionField(types.name, label=gettext_lazy("Unique key"))

    def __init__(self, task: PostgresTask, data: QueryDict | None = None) -> None:
        super().__init__(task, data)
        self.task = task

    def options(self) -> list[forms.BoundField]:
        return [self[name] for name in OPTIONS]

    def has_options(self) -> bool:
        """True if an option was given or refused, so that the options are unfolded."""
        return any(field.errors or (self.is_bound and field.data) for field in self.options())

    def enqueue(self, who: Who, *, dry_run: bool = False) -> Enqueued:
        """Enqueue the task of a valid form. Raises RowlockError or InvalidTask if the queue refuses it."""
        options = {name: self.cleaned_data[name] for name in (*OPTIONS, "reason")}
        args, kwargs = self.call
        return operations.enqueue(self.task.module_path, who, args=args, kwargs=kwargs, **options, dry_run=dry_run)

    def command(self) -> str:
        values: Mapping[str, Any] = self.cleaned_data
        args, kwargs = self.call
        pairs = [
            ("--args", json.dumps(args, ensure_ascii=False) if args else None),
            ("--kwargs", json.dumps(kwargs, ensure_ascii=False) if kwargs else None),
            ("--queue", values["queue_name"]),
            ("--priority", values["priority"]),
            ("--run-after", values["run_after"].isoformat() if values["run_after"] else None),
            ("--ordering-key", values["ordering_key"]),
            ("--unique-key", values["unique_key"]),
            ("--reason", values["reason"] or None),
        ]
        words = [word for name, value in pairs if value is not None for word in (name, str(value))]
        return command("enqueue_task", self.task.module_path, *words)


@dataclass(frozen=True)
class KnownTask:
    """A task that can be chosen: its path, its signature and the first line of its docstring."""

    path: str
    signature: str
    summary: str
    queue_name: str

    @classmethod
    def of(cls, task: PostgresTask) -> "KnownTask":
        parameters = list(inspect.signature(task.func).parameters.values())[1 if task.takes_context else 0 :]
        secrets = SecretFinder()
        parameters = [
            one.replace(default=REDACTED) if one.default is not one.empty and secrets.is_secret(one.name) else one
            for one in parameters
        ]
        summary = (inspect.getdoc(task.func) or "").partition("\n")[0]
        return cls(task.module_path, str(inspect.Signature(parameters)), summary, task.queue_name)


def known_tasks() -> list[KnownTask]:
    return [KnownTask.of(declaration.get(path)) for path in declaration.paths() if may_enqueue(path)]


def may_enqueue(path: str) -> bool:
    """True for a registered task that people may enqueue: no internal one, and none in a queue of the demo."""
    task = declaration.find(path)
    if task is None or declaration.is_internal(path):
        return False
    return not task.queue_name.startswith(reading.DEMO_QUEUES)


def chosen_task(path: str) -> PostgresTask:
    """The task with this path. Raises UnknownTask with advice, and InternalTask for one that nobody may enqueue."""
    task = registered(path)
    if not may_enqueue(path):
        raise InternalTask(_("This task belongs to a page of its own, and is asked for there."))
    return task


@sensitive_post_parameters()  # arguments are not for the e-mail about an error, which Django sends to ADMINS
@require_http_methods(["GET", "HEAD", "POST"])
def enqueue_view(request: HttpRequest) -> HttpResponse:
    """Let the task be chosen, then show its form; enqueue a posted one, or with `check` only show its command."""
    rights.require(request.user, VIEW)
    posted = request.method == "POST"
    if posted:
        rights.require(request.user, ENQUEUE)
    path = (request.POST if posted else request.GET).get("task", "")
    if not path:
        return choice_page(request, _("Choose a task.") if posted else "")
    try:
        task = chosen_task(path)
    except (UnknownTask, InternalTask) as error:
        return choice_page(request, str(error))
    return submitted(request, EnqueueForm(task, request.POST)) if posted else form_page(request, EnqueueForm(task))


def submitted(request: HttpRequest, form: EnqueueForm) -> HttpResponse:
    if "token" in form.errors:
        return rejected(request, CHANGED_FORM)
    who = rights.who(request.user)
    if not form.is_valid():
        return form_page(request, form, status=400)
    found: list[Enqueued] = []

    def enqueue() -> str:
        found.append(form.enqueue(who))
        return str(found[0][0])

    try:
        form.enqueue(who, dry_run=True)
        if "check" in request.POST:
            return form_page(request, form)
        target = tokens.once(form.cleaned_data["token"], enqueue).target
    except (RowlockError, InvalidTask) as error:
        form.add_error(None, str(error))
        return form_page(request, form, status=400)
    for ids in found:
        messages.success(request, outcome(ids))
    return HttpResponseRedirect(address("admin:tasks_task_change", target))


def outcome(ids: Enqueued) -> str:
    """The sentence about one enqueued task, or about the task that had its unique key."""
    if not ids.duplicates:
        text = _("Enqueued as #%(id)s.")
    elif ids.replaced:
        text = _("#%(id)s has this unique key, and has these arguments now.")
    else:
        text = _("#%(id)s has this unique key, and stays as it is: nothing was enqueued.")
    return text % {"id": ids[0]}


def choice_page(request: HttpRequest, fault: str) -> HttpResponse:
    context = {"fault": fault, "known": known_tasks()}
    return page(request, "task_pages/enqueue.html", _("Enqueue a task"), context, status=400 if fault else 200)


def form_page(request: HttpRequest, form: EnqueueForm, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "chosen": KnownTask.of(form.task),
        "missing_right": rights.missing(request.user, ENQUEUE),
        "queues": known_queues(),
        "command": form.command() if form.is_bound and form.is_valid() else "",
    }
    return page(request, "task_pages/enqueue.html", _("Enqueue a task"), context, status=status)
