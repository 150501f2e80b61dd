"""The page that enqueues a registered task, with the same checks and error messages as `enqueue_task`."""

import inspect
import json
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard.site import page
from dashboard.task_pages import CHANGED_FORM, VIEW, rejected
from dashboard.task_pages.listing import known_queues
from tasks import operations
from tasks.admin import rights
from tasks.admin.forms import ConfirmedForm, OptionField
from tasks.commands import types
from tasks.compat import InvalidTask
from tasks.diagnosis.finding import command
from tasks.exceptions import RowlockError
from tasks.framework import declaration
from tasks.framework.declaration import PostgresTask
from tasks.operations import tokens
from tasks.support import reading
from tasks.support.audit import Who

ENQUEUE = "tasks.enqueue_task"


def parse_task(path: str) -> str:
    """The path of a task that people may enqueue."""
    if is_hidden(path):
        raise ArgumentTypeError(_("This task belongs to a page of its own, and is asked for there."))
    return path


class EnqueueForm(ConfirmedForm):
    """One task by its path, its arguments as JSON, and values that differ from its declaration."""

    task = OptionField(
        parse_task,
        label=gettext_lazy("Task"),
        required=True,
        widget=forms.TextInput(attrs={"list": "paths", "autocomplete": "off"}),
    )
    args = OptionField(
        types.json_array,
        label=gettext_lazy("Positional arguments, a JSON array"),
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": '[1, "two"]'}),
    )
    kwargs = OptionField(
        types.json_object,
        label=gettext_lazy("Keyword arguments, a JSON object"),
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": '{"name": 1}'}),
    )
    queue_name = OptionField(
        types.destination,
        label=gettext_lazy("Queue; empty: as declared"),
        widget=forms.TextInput(attrs={"list": "queues"}),
    )
    priority = OptionField(types.priority, label=gettext_lazy("Priority, -100 to 100; empty: as declared"))
    run_after = OptionField(types.moment, label=gettext_lazy("Not before, like 2030-01-31T03:00:00+02:00; empty: now"))
    ordering_key = OptionField(types.name, label=gettext_lazy("Ordering key; empty: as declared"))

    def enqueue(self, who: Who, *, dry_run: bool = False) -> int | None:
        """Enqueue the task of a valid form; returns its id. If the queue refuses it: None, and an error in the form."""
        values = self.cleaned_data
        names = ("kwargs", "queue_name", "priority", "run_after", "ordering_key", "reason")
        options = {name: values[name] for name in names}
        try:
            ids = operations.enqueue(values["task"], who, args=values["args"] or (), **options, dry_run=dry_run)
        except (RowlockError, InvalidTask) as error:
            self.add_error(None, str(error))
            return None
        return ids[0]

    def command(self) -> str:
        values: Mapping[str, Any] = self.cleaned_data
        pairs = [
            ("--args", json.dumps(values["args"], ensure_ascii=False) if values["args"] else None),
            ("--kwargs", json.dumps(values["kwargs"], ensure_ascii=False) if values["kwargs"] else None),
            ("--queue", values["queue_name"]),
            ("--priority", values["priority"]),
            ("--run-after", values["run_after"].isoformat() if values["run_after"] else None),
            ("--ordering-key", values["ordering_key"]),
            ("--reason", values["reason"] or None),
        ]
        words = [word for name, value in pairs if value is not None for word in (name, str(value))]
        return command("enqueue_task", values["task"], *words)


def known_tasks() -> list[dict[str, str]]:
    """Tasks that can be chosen, by path, with their signatures and the first lines of their docstrings."""
    return [known(declaration.get(path)) for path in declaration.paths() if not is_hidden(path)]


def is_hidden(path: str) -> bool:
    """True for a task that people must not enqueue: an internal one, or one in a queue of the demo."""
    task = declaration.find(path)
    return declaration.is_internal(path) or (task is not None and task.queue_name.startswith(reading.DEMO_QUEUES))


def known(task: PostgresTask) -> dict[str, str]:
    parameters = list(inspect.signature(task.func).parameters.values())[1 if task.takes_context else 0 :]
    return {
        "path": task.module_path,
        "signature": str(inspect.Signature(parameters)),
        "summary": (inspect.getdoc(task.func) or "").partition("\n")[0],
        "queue_name": task.queue_name,
    }


@require_http_methods(["GET", "HEAD", "POST"])
def enqueue_view(request: HttpRequest) -> HttpResponse:
    """Show the form; enqueue a posted one, or with `check` only show its command and its errors."""
    rights.require(request.user, VIEW)
    if request.method != "POST":
        return form_page(request, EnqueueForm(initial={"task": request.GET.get("task", "")}))
    rights.require(request.user, ENQUEUE)
    form = EnqueueForm(request.POST)
    if "token" in form.errors:
        return rejected(request, CHANGED_FORM)
    who = rights.who(request.user)
    if not form.is_valid() or not form.enqueue(who, dry_run=True) or "check" in request.POST:
        return form_page(request, form, status=200 if form.is_valid() else 400)
    submitted = tokens.once(form.cleaned_data["token"], lambda: str(form.enqueue(who)))
    if submitted.is_new:
        messages.success(request, _("Enqueued as #%(id)s.") % {"id": submitted.target})
    return HttpResponseRedirect(reverse("admin:tasks_task_change", args=[submitted.target]))


def form_page(request: HttpRequest, form: EnqueueForm, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "missing_right": rights.missing(request.user, ENQUEUE),
        "known": known_tasks(),
        "queues": known_queues(),
        "command": form.command() if form.is_bound and form.is_valid() else "",
    }
    return page(request, "task_pages/enqueue.html", _("Enqueue a task"), context, status=status)
