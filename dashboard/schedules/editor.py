"""The editor of schedules: add and edit one, with its next times while they are typed."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import links
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.schedules import LIST, SEE
from dashboard.schedules.actions import changes_of
from dashboard.schedules.rows import in_words, seen
from dashboard.task_pages import CHANGED_FORM, signature
from dashboard.task_pages.enqueue import CallForm, KnownTask, chosen_task, known_tasks
from dashboard.task_pages.listing import known_queues
from tasks.admin import rights
from tasks.admin.forms import OptionField, WholeNumberField
from tasks.commands import types
from tasks.diagnosis.finding import command
from tasks.exceptions import InternalTask, InvalidSchedule, RowlockError, StaleVersion, UnknownSchedule, UnknownTask
from tasks.framework import declaration
from tasks.framework.redacted_calls import redact_call
from tasks.models import Schedule
from tasks.models.schedule import LONGEST_NAME
from tasks.operations import schedules, tokens
from tasks.support import durations, reading
from tasks.support.addresses import address
from tasks.support.audit import Who
from tasks.support.recurrence import Recurrence, checked_text, default_zone, recurrence, seconds_of, zone

WHEN = ("cron", "every", "timezone", "ends_at")
OPTIONS = ("queue_name", "priority", "missed", "overlap")
NONE = "\u2013"


def known_zone(written: str) -> str:
    return zone(written).key


class WhenForm(forms.Form):
    """The fields that decide the times; `recurrence` is that of a valid form."""

    cron = OptionField(
        types.option(checked_text),
        label=gettext_lazy("Cron expression: minute, hour, day, month, weekday"),
        widget=forms.TextInput(attrs={"placeholder": "30 3 * * mon-fri", "autocomplete": "off"}),
    )
    every = OptionField(
        types.option(seconds_of),
        label=gettext_lazy("or every, like 90s, 10m, 12h or 7d"),
        widget=forms.TextInput(attrs={"placeholder": "10m", "autocomplete": "off"}),
    )
    timezone = OptionField(
        types.option(known_zone),
        label=gettext_lazy("Time zone of the cron expression"),
        widget=forms.TextInput(attrs={"list": "zones", "autocomplete": "off"}),
    )
    ends_at = OptionField(types.moment, label=gettext_lazy("Ends at, like 2030-01-31T03:00:00+02:00, optional"))

    def clean(self) -> None:
        super().clean()
        if self.errors.keys().isdisjoint(WHEN):
            values = self.cleaned_data
            try:
                self.recurrence: Recurrence = recurrence(values["cron"], values["every"], values["timezone"])
            except InvalidSchedule as error:
                self.add_error("cron", str(error))

    def times(self) -> dict[str, Any]:
        """The next times for the template; none while a field is wrong."""
        if not self.is_bound or not self.errors.keys().isdisjoint(WHEN):
            return {"faults": [error for name in WHEN for error in self.errors.get(name, ())]}
        found = self.recurrence
        return {
            "forecast": schedules.forecast(found, self.cleaned_data["ends_at"]),
            "words": in_words(found.cron, found.every_seconds),
            "zone": found.timezone if found.cron else "UTC",
        }


class ScheduleForm(WhenForm, CallForm):
    """A schedule of one task. `row`: the one that is edited; `keeps_call`: its arguments stay as they are."""

    name = OptionField(types.option(reading.name), label=gettext_lazy("Name"), required=True, max_length=LONGEST_NAME)
    queue_name = OptionField(
        types.destination, label=gettext_lazy("Queue"), widget=forms.TextInput(attrs={"list": "queues"})
    )
    priority = OptionField(types.priority, label=gettext_lazy("Priority, -100 to 100"))
    missed = forms.ChoiceField(choices=Schedule.Missed.choices, label=gettext_lazy("Missed times"))
    overlap = forms.ChoiceField(choices=Schedule.Overlap.choices, label=gettext_lazy("Last task unfinished"))
    edition = WholeNumberField(widget=forms.HiddenInput, required=False, min_value=1)

    def __init__(self, path: str, row: Schedule | None = None, data: QueryDict | None = None) -> None:
        task = declaration.find(path)
        written = written_call(row) if row else {}
        self.keeps_call = written is None
        super().__init__(None if self.keeps_call else task, data, initial={**initial_of(row), **(written or {})})
        self.path, self.row = path, row
        for name in ("queue_name", "priority"):  # the task's own values
            self.fields[name].widget.attrs["placeholder"] = getattr(task, name, "")
        if row is not None:
            del self.fields["name"]

    def options(self) -> list[forms.BoundField]:
        return [self[name] for name in OPTIONS]

    def when(self) -> list[forms.BoundField]:
        return [self[name] for name in WHEN]

    def times(self) -> dict[str, Any]:
        if self.is_bound or self.row is None:
            return super().times()
        shown = WhenForm({name: self.initial[name] for name in WHEN})
        shown.is_valid()
        return shown.times()

    def settings(self) -> dict[str, Any]:
        """Return the settings for the operation: all of a new schedule, else those that differ from the row."""
        values = self.cleaned_data
        settings = {name: values[name] for name in (*OPTIONS, "ends_at")}
        found, row, task = self.recurrence, self.row, self.argument_task
        if row is not None:
            settings = {name: value for name, value in settings.items() if value != getattr(row, name)}
        if task and not (row and signature.is_same_call(task, self.call, (row.args, row.kwargs))):
            settings |= dict(zip(("args", "kwargs"), self.call, strict=True))
        if row is None or (found.cron, found.every_seconds) != (row.cron, row.every_seconds):
            settings |= {"cron": found.cron, "every": found.every_seconds}
        if row is None or found.timezone != row.timezone:
            settings["timezone"] = found.timezone
        return settings

    def save(self, who: Who, *, dry_run: bool = False) -> str | None:
        """Write a valid form; returns the name, or None with an error in the form. Raises StaleVersion."""
        settings, reason = self.settings(), self.cleaned_data["reason"]
        try:
            if self.row is None:
                name = self.cleaned_data["name"]
                schedules.add(name, self.path, who, settings, reason=reason, dry_run=dry_run)
            else:
                name, edition = self.row.name, self.cleaned_data["edition"] or 0
                schedules.edit(name, who, settings, edition=edition, reason=reason, dry_run=dry_run)
        except StaleVersion:
            raise
        except (RowlockError, reading.Unreadable) as error:
            self.add_error(None, str(error))
            return None
        return name


def initial_of(row: Schedule | None) -> dict[str, Any]:
    if row is None:
        return {"timezone": default_zone()}
    every = durations.describe(timedelta(seconds=row.every_seconds)) if row.every_seconds else ""
    values = {name: getattr(row, name) for name in (*OPTIONS, "cron", "timezone", "edition")}
    return {**values, "every": every, "ends_at": row.ends_at.isoformat() if row.ends_at else ""}


def written_call(row: Schedule) -> dict[str, str] | None:
    """The call of a schedule as the fields show it; None if they cannot, or if it has secrets, which no page shows."""
    task = declaration.find(row.task_path)
    if task is None or redact_call(row.task_path, row.args, row.kwargs) != (row.args, row.kwargs):
        return None
    return signature.written_call(task, row.args, row.kwargs)


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def add(request: HttpRequest) -> HttpResponse:
    """Let the task be chosen, then show its form; add the posted one, or with `check` only show its times."""
    rights.require(request.user, SEE)
    posted = request.method == "POST"
    if posted:
        rights.require(request.user, schedules.RIGHT_TO_EDIT)
    path = (request.POST if posted else request.GET).get("task", "")
    if not path:
        return choice_page(request, _("Choose a task.") if posted else "")
    try:
        chosen_task(path)
    except (UnknownTask, InternalTask) as error:
        return choice_page(request, str(error))
    form = ScheduleForm(path, None, request.POST if posted else None)
    return submitted(request, form) if posted else form_page(request, form)


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest) -> HttpResponse:
    """Edit a schedule; 409 if a setting has changed since the person looked."""
    rights.require(request.user, SEE)
    posted = request.method == "POST"
    if posted:
        rights.require(request.user, schedules.RIGHT_TO_EDIT)
    name = (request.POST if posted else request.GET).get("schedule", "").replace("\0", "")
    try:
        row = schedules.find(name)
    except UnknownSchedule as error:
        messages.error(request, str(error))
        return redirect(address(LIST))
    form = ScheduleForm(row.task_path, row, request.POST if posted else None)
    return submitted(request, form) if posted else form_page(request, form)


@require_safe
def times(request: HttpRequest) -> HttpResponse:
    """The next times of the fields as they are typed."""
    rights.require(request.user, SEE)
    form = WhenForm(request.GET)
    form.is_valid()
    return render(request, "dashboard/_schedule_times.html", {"times": form.times()})


def submitted(request: HttpRequest, form: ScheduleForm) -> HttpResponse:
    if "token" in form.errors:
        messages.error(request, str(CHANGED_FORM))
        return redirect(address(LIST))
    who = rights.who(request.user)
    if not form.is_valid():
        return form_page(request, form, status=400)
    token = form.cleaned_data["token"]
    try:
        if "check" in request.POST:
            return form_page(request, form, status=200 if form.save(who, dry_run=True) else 400)
        done = tokens.once(token, lambda: saved(form, who))
    except StaleVersion:
        return stale_page(request, form)
    except NotSaved:
        return form_page(request, form, status=400)
    if done.is_new:
        messages.success(request, _("The schedule %(name)s is saved.") % {"name": done.target})
    snapshots.forget()
    return redirect(links.page(LIST, q=done.target))


def stale_page(request: HttpRequest, form: ScheduleForm) -> HttpResponse:
    """The form as it was filled in, what is stored now, and who changed it; saving it again overwrites that."""
    row = form.row = schedules.find(form.row.name if form.row else "")
    stored = initial_of(row)
    differences = [
        (form[name].label, str(stored[name] or NONE), form.data.get(name) or NONE)
        for name in (*WHEN, *OPTIONS)
        if str(stored[name] or "") != form.data.get(name, "")
    ]
    more = {"changes": changes_of(row), "differences": differences, "edition": row.edition}
    return form_page(request, form, status=409, **more)


class NotSaved(Exception):
    """The form says why."""


def saved(form: ScheduleForm, who: Who) -> str:
    name = form.save(who)
    if name is None:
        raise NotSaved
    return name


def choice_page(request: HttpRequest, fault: str) -> HttpResponse:
    context = {"fault": fault, "known": known_tasks()}
    return page(request, "dashboard/schedule_choice.html", _("Add a schedule"), context, status=400 if fault else 200)


def form_page(request: HttpRequest, form: ScheduleForm, status: int = 200, **more: Any) -> HttpResponse:
    row, task = form.row, declaration.find(form.path)
    context: Mapping[str, Any] = {
        "form": form,
        "row": row,
        "chosen": KnownTask.of(task) if task else None,
        "path": form.path,
        "call": redact_call(row.task_path, row.args, row.kwargs) if row and form.keeps_call else None,
        "seen": seen(row) if row else "",
        "edition": form["edition"].value(),
        "times": form.times(),
        "missing_right": rights.missing(request.user, schedules.RIGHT_TO_EDIT),
        "queues": known_queues(),
        "zones": sorted(available_timezones()),
        "is_checked": form.is_bound and not form.errors,
        "command": command_of(form) if form.is_bound and not form.errors else "",
        **more,
    }
    title = _("Edit a schedule") if row else _("Add a schedule")
    return page(request, "dashboard/schedule_edit.html", title, dict(context), status=status)


def command_of(form: ScheduleForm) -> str:
    """The command that saves the form."""
    settings = {**form.settings(), "reason": form.cleaned_data["reason"]}
    words = [word for key, value in settings.items() for word in option(key, value)]
    if form.row is None:
        return command("add_schedule", form.cleaned_data["name"], form.path, *words)
    return command("edit_schedule", form.row.name, *words) if words else ""


def option(key: str, value: Any) -> tuple[str, ...]:
    """The option of a setting; none for one that is as the task declares it."""
    if value in (None, "", [], {}):
        return ()
    text = {
        "every": lambda: durations.describe(timedelta(seconds=value)),
        "args": lambda: json.dumps(value, ensure_ascii=False),
        "kwargs": lambda: json.dumps(value, ensure_ascii=False),
        "ends_at": lambda: value.isoformat(),
    }.get(key, lambda: str(value))()
    return (f"--{key.removesuffix('_name').replace('_', '-')}", text)
