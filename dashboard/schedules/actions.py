"""The buttons of a schedule: run now, pause, resume, back to the declared one, delete, and switching upkeep on."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from dashboard import links
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.schedules import LIST, SEE
from dashboard.schedules.rows import ScheduleRow, has_backlog
from tasks.admin import rights
from tasks.admin.forms import PreviewedForm
from tasks.compat import InvalidTask
from tasks.diagnosis.finding import command
from tasks.exceptions import RowlockError, StaleVersion, UnknownSchedule
from tasks.framework.redacted_calls import redact_call
from tasks.models import Intervention, Schedule, Task
from tasks.models.schedule import LONGEST_NAME
from tasks.operations import schedules, tokens
from tasks.support import audit, reading
from tasks.support.addresses import address
from tasks.support.audit import Who

MOST_CHANGES = 5  # interventions that a refusal lists
LARGEST_EDITION = 2**31 - 1


@dataclass(frozen=True)
class Action:
    """One button. `asks`: a page comes before it; `perform` takes a schedule, its edition as seen and the reason."""

    name: str
    label: Promise
    right: str
    perform: Callable[[str, Who, int, str], Any]
    done: Promise
    command: tuple[str, ...]
    asks: bool = True
    is_destructive: bool = False

    def command_for(self, name: str) -> str:
        return command(self.command[0], name, *self.command[1:])


def _perform(verb: Callable[..., Any]) -> Callable[[str, Who, int, str], Any]:
    return lambda name, who, edition, reason: verb(name, who, edition=edition, reason=reason)


ACTIONS = {
    action.name: action
    for action in (
        Action(
            "run",
            gettext_lazy("Run now"),
            schedules.RIGHT_TO_RUN,
            _perform(schedules.run_now),
            gettext_lazy("Schedule %(name)s was enqueued as %(id)s."),
            ("run_schedule",),
        ),
        Action(
            "pause",
            gettext_lazy("Pause"),
            schedules.RIGHT_TO_PAUSE,
            _perform(schedules.pause),
            gettext_lazy("Schedule %(name)s is paused."),
            ("pause_schedule",),
            asks=False,
        ),
        Action(
            "resume",
            gettext_lazy("Resume"),
            schedules.RIGHT_TO_PAUSE,
            _perform(schedules.resume),
            gettext_lazy("Schedule %(name)s runs again."),
            ("resume_schedule",),
            asks=False,
        ),
        Action(
            "revert",
            gettext_lazy("Back to the declared one"),
            schedules.RIGHT_TO_EDIT,
            _perform(schedules.revert),
            gettext_lazy("Schedule %(name)s is as declared in code again."),
            ("edit_schedule", "--declared"),
        ),
        Action(
            "delete",
            gettext_lazy("Delete"),
            schedules.RIGHT_TO_EDIT,
            _perform(schedules.delete),
            gettext_lazy("Schedule %(name)s is deleted. Its tasks stay."),
            ("delete_schedule",),
            is_destructive=True,
        ),
    )
}
RIGHTS = (schedules.RIGHT_TO_EDIT, schedules.RIGHT_TO_PAUSE, schedules.RIGHT_TO_RUN)


class ActionForm(PreviewedForm):
    """A person's press of a button: the schedule with its edition, as `rows.seen` writes it."""

    schedule = forms.CharField(max_length=LONGEST_NAME + 12, strip=False)
    token = forms.CharField(required=False, max_length=tokens.LONGEST_TOKEN)  # type: ignore[assignment]

    def clean_schedule(self) -> tuple[str, int]:
        edition, _space, name = self.cleaned_data["schedule"].partition(" ")
        number = reading.digits(edition)
        if number is None or number > LARGEST_EDITION or reading.name_problem(name, LONGEST_NAME):
            raise forms.ValidationError("")
        return name, number

    def clean_token(self) -> str:
        token = self.cleaned_data["token"]
        if token and not tokens.is_token(token):
            raise forms.ValidationError("")
        return token or ""


@require_POST
def act(request: HttpRequest, name: str) -> HttpResponse:
    """Do it at once, or after a question; 409 if a setting has changed since the person looked."""
    action = ACTIONS.get(name)
    if action is None:
        raise Http404(_("There is no such action."))
    rights.require(request.user, SEE)
    rights.require(request.user, action.right)
    values = ActionForm.read(request.POST)
    if values is None:
        return page(request, "dashboard/schedule_action.html", str(action.label), {"action": action}, status=400)
    schedule, edition = values["schedule"]
    try:
        row, now = schedules.find(schedule), schedules.now()
        is_stale = row.edition != edition
        asks = action.asks or (action.name == "resume" and has_backlog(row, now))
        if is_stale or (asks and not values["confirmed"]):
            return ask(request, action, row, now, is_stale=is_stale)
        carry_out(request, action, schedule, edition, values["reason"], values["token"])
    except StaleVersion:
        return ask(request, action, schedules.find(schedule), now, is_stale=True)
    except (RowlockError, InvalidTask) as error:
        messages.error(request, str(error))
    return back(request)


def carry_out(request: HttpRequest, action: Action, name: str, edition: int, reason: str, token: str) -> None:
    who = rights.who(request.user)

    def work() -> str:
        return str(action.perform(name, who, edition, reason))

    # Without a token a repeated press finds it paused or resumed already.
    result = tokens.once(token, work).target if token else work()
    if result == str(False):
        messages.info(request, _("Schedule %(name)s was like that already.") % {"name": name})
        return
    url = address("admin:tasks_task_change", result) if action.name == "run" else ""
    messages.success(request, links.sentence(str(action.done), name=name, id=links.anchor(f"#{result}", url)))


def back(request: HttpRequest) -> HttpResponse:
    """The page of schedules, with its search where the button was."""
    snapshots.forget()
    query = request.POST.get("search", "")
    return redirect(address(LIST) + (query if query.startswith("?") and query.isprintable() else ""))


def ask(request: HttpRequest, action: Action, row: Schedule, now: datetime, *, is_stale: bool = False) -> HttpResponse:
    """The question, or what changed since the person looked."""
    last = Task.objects.unfinished().filter(pk=row.last_task_id or 0).first()
    args, kwargs = redact_call(row.task_path, row.args, row.kwargs)
    context = {
        "action": action,
        "row": row,
        "shown": ScheduleRow.of(row, {}, now),
        "args": args,
        "kwargs": kwargs,
        "unfinished": last,
        "changes": changes_of(row) if is_stale else [],
        "is_stale": is_stale,
        "search": request.POST.get("search", ""),
        "token": tokens.new_token(),
        "command": action.command_for(row.name),
    }
    status = 409 if is_stale else 200
    return page(request, "dashboard/schedule_action.html", str(action.label), context, status=status)


def changes_of(row: Schedule) -> list[Intervention]:
    """The latest interventions, newest first."""
    return list(Intervention.objects.filter(target=audit.schedule(row.name)).order_by("-id")[:MOST_CHANGES])


@require_POST
def switch_on(request: HttpRequest) -> HttpResponse:
    """Switch one upkeep on, with one click; it is there already after a second one."""
    rights.require(request.user, SEE)
    rights.require(request.user, schedules.RIGHT_TO_EDIT)
    try:
        row = schedules.switch_on_maintenance(reading.name(request.POST.get("name", "")), rights.who(request.user))
    except UnknownSchedule as error:
        messages.error(request, str(error))
    else:
        values = {"name": row.name, "when": row.recurrence.describe()}
        messages.success(request, _("Schedule %(name)s is switched on: %(when)s.") % values)
    return back(request)
