"""The page "Stuck": tasks that dead and silent workers still hold, and recovering them."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import get_language, ngettext
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import links
from dashboard import stale as stale_tasks
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.task_pages.actions import PAGE_ACTIONS, buttons_of
from dashboard.task_pages.confirmation import MOST_REFUSALS, listed
from tasks.admin.forms import PreviewedForm
from tasks.admin.rights import missing, require, who
from tasks.diagnosis.finding import command
from tasks.operations.filters import InvalidFilter
from tasks.support import reading
from tasks.support.addresses import address

SEE, TAKE = "tasks.view_task", "tasks.recover_task"
MOST_WORKERS = 200


class TakeBackForm(PreviewedForm):
    """A person's request to recover the tasks of these workers, as the page showed them."""

    def clean(self) -> dict[str, Any]:
        post = cast("QueryDict", self.data)
        ids = list(dict.fromkeys(post.getlist("worker")))
        if not 1 <= len(ids) <= MOST_WORKERS or any(map(reading.name_problem, ids)):
            raise forms.ValidationError("no worker of the page")
        return {**self.cleaned_data, "worker_ids": ids}


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/stale/", view(stale), name="ops_stale"),
        path("ops/stale/take-back/", view(take_back), name="ops_take_back"),
    ]


@require_safe
def stale(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    require(request.user, SEE)
    try:
        cursor = stale_tasks.Cursor.from_params(request.GET)
    except InvalidFilter as error:
        return page(request, "dashboard/stale.html", _("Stuck"), {"fault": str(error)}, status=400)
    is_part = "HX-Request" in request.headers
    if cursor == stale_tasks.Cursor():
        if is_part:
            return LIVE.answer(request)
        LIVE.expect(request)
    template = "dashboard/_stale.html" if is_part else "dashboard/stale.html"
    return page(request, template, _("Stuck"), context_of(request, stale_tasks.page_after(cursor)))


def context_of(request: HttpRequest, seen: stale_tasks.Stale) -> dict[str, Any]:
    buttons = buttons_of([PAGE_ACTIONS["recover"], PAGE_ACTIONS["requeue"]], request.user)
    cursor = seen.next_cursor
    return {
        "seen": seen,
        "older": "?" + urlencode({"worker": cursor.worker_id, "after": cursor.task_id}) if cursor else "",
        "cannot_take": missing(request.user, TAKE),
        "buttons": buttons,
        "forbidden": tuple(button.action.name for button in buttons if button.missing_right),
        "command": command("recover_tasks"),
        "start": command("run_worker"),
    }


def first_context(request: HttpRequest) -> dict[str, Any]:
    """Data of the first page: an opened page queries for itself, refreshes share one snapshot."""
    return context_of(request, snapshots.of(request).once(first_page(get_language() or "")))


LIVE = SharedPart("dashboard/_stale.html", first_context, every=2)


@cache
def first_page(language: str) -> Callable[[], stale_tasks.Stale]:
    """The query of the first page in this language, which must be active when it runs."""
    return lambda: stale_tasks.page_after(stale_tasks.Cursor())


@require_POST
def take_back(request: HttpRequest) -> HttpResponse:
    """First preview the tasks and how their workers died, then recover them."""
    require(request.user, SEE)
    require(request.user, TAKE)
    values = TakeBackForm.read(request.POST)
    if values is None:
        return page(request, "dashboard/take_back.html", _("Take back"), {}, status=400)
    ids, reason = values["worker_ids"], values["reason"]
    back = links.back_to(request, address("admin:ops_stale"))
    if not values["confirmed"] and (found := stale_tasks.preview(ids)).number:
        shell, start = command("recover_tasks", "--reason", reason or "…"), command("run_worker")
        context = {"asked": values, "found": found, "start": start, "next": back, "command": shell}
        return page(request, "dashboard/take_back.html", _("Take these tasks back?"), context)
    taken = stale_tasks.take_back(ids, who(request.user), reason=reason)
    snapshots.forget()
    report(request, taken)
    return redirect(back)


def report(request: HttpRequest, taken: stale_tasks.Taken) -> None:
    """Say what was taken back, what was not, and who locks which row."""
    if not taken.done and not taken.left:
        messages.info(request, _("These workers hold no task any more. Nothing was taken back."))
    if taken.done:
        number, by_status = len(taken.done), Counter(taken.done.values())
        text = ngettext("%(number)d task was taken back", "%(number)d tasks were taken back", number)
        statuses = ", ".join(f"{number} {status}" for status, number in by_status.items())
        done = listed(list(taken.done))
        messages.success(request, format_html("{} ({}): {}.", text % {"number": number}, statuses, done))
    locked = list(taken.locked.items())[:MOST_REFUSALS]
    for task_id, reason in locked:
        text = _("%(id)s not changed: %(reason)s.")
        messages.warning(request, links.sentence(text, id=listed([task_id]), reason=reason))
    if others := taken.left - len(locked):
        text = ngettext(
            "%(number)d task not changed: its worker is not dead, not yet, or its row is locked.",
            "%(number)d tasks not changed: their worker is not dead, not yet, or their rows are locked.",
            others,
        )
        messages.warning(request, text % {"number": others})
