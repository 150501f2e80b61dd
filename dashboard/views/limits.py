"""The page *Limits*: what may run at once and how often, key by key, and changing it; for queues too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from django import forms
from django.contrib import messages
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from dashboard import limits, links
from dashboard.attention.inbox import is_too_slow
from dashboard.layout import page
from dashboard.limits import CAP, SHOWN, Holder, KeyLimit
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.numbers import decimal
from dashboard.task_pages import next_page
from dashboard.task_pages.queues import capped, limit_command
from dashboard.templatetags.rowlock import age
from tasks.admin import rights
from tasks.admin.forms import OptionField, PreviewedForm, reason_of
from tasks.commands import types
from tasks.diagnosis.finding import command
from tasks.models import Limit, Queue
from tasks.operations import set_limit, set_queue_limit
from tasks.support import reading
from tasks.support.durations import rate_text

SEE, CONFIGURE, CONFIGURE_QUEUE = "tasks.view_limit", "tasks.configure_limit", "tasks.configure_queue"
LIST, QUEUES = "admin:ops_limits", "admin:tasks_queue_changelist"
SWITCHES = {"pause": True, "resume": False}


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/limits/", view(limits_view), name="ops_limits"),
        path("ops/limits/change/", view(change), name="ops_limit_set"),
        path("ops/limits/<slug:name>/", view(switch), name="ops_limit_switch"),
    ]


@require_safe
def limits_view(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its table. `key` shows one key, `q` those that contain a text, `after` the next page."""
    rights.require(request.user, SEE)
    if "HX-Request" in request.headers:
        return LIVE.answer(request)
    asked = Asked.of(request)
    # A search through all keys may take a second, so it is not repeated by itself.
    context: dict[str, Any] = {"asked": asked, "every": None if asked.text else LIVE.every, **missing_rights(request)}
    try:
        context["panel"] = LIVE.text(request)
    except OperationalError as error:
        if not asked.text or not is_too_slow(error):
            raise
        context["fault"] = _("The search took too long. Below is the key of exactly this name.")
        exactly = rows_context(request, asked, [asked.text])
        context["panel"] = render_to_string("limits/_rows.html", exactly, request)
    return page(request, "limits/list.html", _("Limits"), context)


@dataclass(frozen=True)
class Asked:
    """The chosen part of the page."""

    key: str = ""
    text: str = ""
    after: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> Self:
        """Read the query. Raises Unreadable for text that no key can be."""
        read = [request.GET.get(name, "") for name in ("key", "q", "after")]
        for text in filter(None, read):
            reading.name(text)
        return cls(*read)


def live_context(request: HttpRequest) -> dict[str, Any]:
    asked = Asked.of(request)
    return rows_context(request, asked, [asked.key] if asked.key else limits.keys(asked.text, asked.after))


def rows_context(request: HttpRequest, asked: Asked, names: list[str]) -> dict[str, Any]:
    found = limits.limits(names[:SHOWN])
    more = {"q": asked.text, "after": found[-1].key} if len(names) > SHOWN else None
    return {
        "rows": [LimitRow.of(limit) for limit in found],
        "onward": links.page("admin:ops_limits", **more) if more else "",
        "first": links.page("admin:ops_limits", q=asked.text) if asked.after else "",
        "asked": asked,
        **missing_rights(request),
    }


LIVE = SharedPart("limits/_rows.html", live_context, every=2, is_apart=True)


def missing_rights(request: HttpRequest) -> dict[str, str]:
    return {"cannot_configure": rights.missing(request.user, CONFIGURE)}


@dataclass(frozen=True)
class HolderRow:
    """A running task of a key, in texts."""

    id: str
    name: str
    since: SafeString | str
    worker_id: str
    worker_url: str


@dataclass(frozen=True, kw_only=True)
class LimitRow:
    """One line of the page, in texts.

    `first`: the task that has run longest; `others`: the next ones; `more`: the number of those that are not named.
    """

    id: str
    key: str
    url: str
    limit: str
    is_full: bool
    running: str
    first: HolderRow | None
    others: tuple[HolderRow, ...]
    more: int
    waiting: str
    waiting_url: str
    has_rate: bool
    rate: str
    rate_key: str
    rate_url: str
    start: SafeString | str
    is_set: bool
    is_paused: bool
    paused_by: str
    paused_for: SafeString | str
    commands: tuple[str, ...]

    @classmethod
    def of(cls, limit: KeyLimit) -> Self:
        holders = [holder_row(holder, limit) for holder in limit.holders]
        starts, most = limit.starts, limit.most
        has_other_key = limit.rate_key is not None and limit.rate_key != limit.key and limit.rate is None
        return cls(
            id=links.element_id(limit.key),
            key=limit.key,
            url=links.limit(limit.key),
            limit="\u2013" if most is None else decimal(most),
            is_full=most is not None and limit.running >= most,
            running=capped(limit.running, CAP),
            first=holders[0] if holders else None,
            others=tuple(holders[1:]),
            more=limit.running - len(limit.holders),
            waiting=f"{decimal(limit.waiting)}+" if limit.is_capped else decimal(limit.waiting),
            waiting_url=links.tasks(concurrency_key=limit.key, statuses=("READY",)),
            has_rate=starts is not None,
            rate=rate_text(*starts) if starts else "\u2013",
            rate_key=limit.rate_key or "" if has_other_key else "",
            rate_url=links.limit(limit.rate_key or "") if has_other_key else "",
            start=start_of(limit),
            is_set=limit.is_set,
            is_paused=limit.paused,
            paused_by=limit.paused_by,
            paused_for=age(limit.paused_at, limit.now),
            commands=(
                command("configure_limit", limit.key, "--resume" if limit.paused else "--pause"),
                limit_command("configure_limit", limit.key, limit),
            ),
        )


def holder_row(holder: Holder, limit: KeyLimit) -> HolderRow:
    name = holder.task_path.rpartition(".")[2]
    return HolderRow(
        str(holder.id), name, age(holder.since, limit.now), holder.worker_id, links.worker(holder.worker_id)
    )


def start_of(limit: KeyLimit) -> SafeString | str:
    """When the rate allows the next start; empty without a rate, and while the key is paused."""
    if limit.due is None or limit.paused:
        return ""
    return _("now") if limit.due or limit.next_at is None else age(limit.next_at, limit.now)


@require_POST
def switch(request: HttpRequest, name: str) -> HttpResponse:
    """Pause or resume a key at once."""
    if name not in SWITCHES:
        raise Http404(_("There is no such action."))
    rights.require(request.user, CONFIGURE)
    key = reading.name(request.POST.get("key", ""))
    changed = set_limit(key, rights.who(request.user), paused=SWITCHES[name], reason=reason_of(request.POST))
    if not changed:
        messages.info(request, _("The key %(key)s was like that already.") % {"key": key})
    else:
        text = _("The key %(key)s is paused.") if SWITCHES[name] else _("The key %(key)s is resumed.")
        messages.success(request, text % {"key": key})
    snapshots.forget()
    return HttpResponseRedirect(next_page(request, LIST))


class LimitForm(PreviewedForm):
    """A person's limit of a key or of a queue; empty fields take it away."""

    max_running = OptionField(
        types.at_once, label=gettext_lazy("At most at once"), widget=forms.TextInput({"autofocus": True})
    )
    rate = OptionField(types.rate, label=gettext_lazy("Starts per period"))


@require_POST
def change(request: HttpRequest) -> HttpResponse:
    """First ask for the numbers, then set them."""
    is_queue = "queue" in request.POST
    rights.require(request.user, CONFIGURE_QUEUE if is_queue else CONFIGURE)
    name = reading.name(request.POST.get("queue" if is_queue else "key", ""))
    row = (Queue.objects.filter(name=name) if is_queue else Limit.objects.filter(key=name)).first() or Limit()
    initial = {"max_running": row.max_running, "rate": rate_text(row.rate, row.period_seconds) if row.rate else ""}
    form = LimitForm(request.POST if "confirmed" in request.POST else None, initial=initial)
    if not form.is_valid():
        verb = "configure_queue" if is_queue else "configure_limit"
        context = {
            "form": form,
            "name": name,
            "is_queue": is_queue,
            "next": next_page(request, QUEUES if is_queue else LIST),
            "command": limit_command(verb, name, row),
        }
        title = _("Limit of the queue %(name)s") if is_queue else _("Limit of the key %(name)s")
        status = 400 if form.errors else 200
        return page(request, "limits/change.html", title % {"name": name}, context, status=status)
    values = form.cleaned_data
    numbers = {"max_running": values["max_running"], "rate": values["rate"], "reason": values["reason"]}
    changed = (set_queue_limit if is_queue else set_limit)(name, rights.who(request.user), **numbers)
    text = _("The limit of %(name)s was changed.") if changed else _("The limit of %(name)s was like that already.")
    messages.success(request, text % {"name": name})
    snapshots.forget()
    return HttpResponseRedirect(next_page(request, QUEUES if is_queue else LIST))
