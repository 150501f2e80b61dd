"""The page of the fleet: every installation, what needs attention anywhere, and a search in all of them.

It never writes to an installation: its links open the row there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from dashboard import links
from dashboard.fleet import look, words
from dashboard.fleet.answers import LONGEST_WORD, MINUTES, Line, Queue
from dashboard.fleet.look import EVERY_SECONDS, SEE, Hit, State
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.numbers import decimal
from dashboard.templatetags.rowlock import age
from tasks.admin import rights
from tasks.support import reading
from tasks.support.durations import spoken

SHOWN = 200
LINES_FIRST, LINES_SHOWN = 10, 50  # the others of these are folded away: the table is below them
QUEUES_SHOWN = 30
# The tabs, by the ranks of the states in each.
TABS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "": (gettext_lazy("All"), (0, 1, 2, 3)),
    "trouble": (gettext_lazy("In trouble"), (0, 1)),
    "warning": (gettext_lazy("Warning"), (2,)),
    "ok": (gettext_lazy("Healthy"), (3,)),
}
HEALTH = {"critical": "severity-critical", "warning": "severity-warning", "ok": "verdict verdict-completed"}


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("ops/fleet/", view(fleet), name="ops_fleet")]


@require_safe
def fleet(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live part.

    `name` and `state` filter the installations, `q` searches in all of them.
    """
    rights.require(request.user, SEE)
    for name in ("q", "name", "state"):
        asked(request, name)
    if "HX-Request" in request.headers:
        return LIVE.answer(request)
    text = asked(request, "q")
    fields = {"name": asked(request, "name"), "state": asked(request, "state")}
    context: dict[str, Any] = {"every": LIVE.every, "text": text, **fields}
    if text:
        hits = look.search(text, snapshots.current("fleet", EVERY_SECONDS).once(look.kept))
        context |= {"hits": list(map(HitRow.of, hits)), "has_found": any(hit.matches for hit in hits)}
    return page(request, "fleet/list.html", _("Fleet"), {**context, "panel": LIVE.text(request)})


def asked(request: HttpRequest, name: str) -> str:
    """One field of the query, stripped. Raises Unreadable."""
    text = request.GET.get(name, "").strip()
    if len(text) > LONGEST_WORD:
        raise reading.Unreadable(f"A text to search for has at most {LONGEST_WORD} characters.")
    return reading.name(text) if text else ""


def live_context(request: HttpRequest) -> dict[str, Any]:
    found, wanted, tab = look.shared(), asked(request, "name").casefold(), asked(request, "state")
    named = [state for state in found.states if wanted in state.name.casefold()]
    states = [state for state in named if state.rank in TABS.get(tab, TABS[""])[1]]
    names, now = {(state.name, state.url) for state in states}, datetime.now(UTC)
    lines = [LineRow.of(state, line, now) for state, line in found.lines if (state.name, state.url) in names]
    return {
        "tabs": [Tab.of(request, key, named) for key in TABS],
        "rows": list(map(StateRow.of, states[:SHOWN])),
        "hidden": max(0, len(states) - SHOWN),
        "lines": lines[:LINES_FIRST],
        "folded_lines": lines[LINES_FIRST:LINES_SHOWN],
        "hidden_lines": max(0, len(lines) - LINES_SHOWN),
        "faults": found.faults,
        "has_any": bool(found.states),
        "trouble": sum(state.is_trouble for state in named),
        "cannot_configure": not request.user.is_superuser,
    }


LIVE = SharedPart("fleet/_look.html", live_context, every=EVERY_SECONDS, is_apart=True)


@dataclass(frozen=True)
class Tab:
    """A link that shows the installations in some states."""

    label: str
    url: str
    number: str
    is_here: bool

    @classmethod
    def of(cls, request: HttpRequest, key: str, states: list[State]) -> Self:
        (label, ranks), fields = TABS[key], request.GET.copy()
        fields["state"] = key
        url = f"?{urlencode([(name, text) for name, text in fields.items() if text])}"
        here = asked(request, "state")
        is_here = key == (here if here in TABS else "")
        return cls(str(label), url, decimal(sum(state.rank in ranks for state in states)), is_here)


@dataclass(frozen=True)
class QueueRow:
    """One queue of an installation, in texts."""

    name: str
    ready: str
    oldest: str

    @classmethod
    def of(cls, queue: Queue) -> Self:
        oldest = "" if queue.oldest_seconds is None else spoken(queue.oldest_seconds)
        return cls(queue.name, decimal(queue.ready), oldest)


@dataclass(frozen=True, kw_only=True)
class StateRow:
    """One installation, in texts. `is_old`: the state is the last known one."""

    id: str
    name: str
    url: str
    state: str
    style: str
    why: str
    is_trouble: bool
    is_old: bool
    age: str
    has_state: bool
    critical: str = ""
    warnings: str = ""
    first: QueueRow | None = None
    others: tuple[QueueRow, ...] = ()
    more: int = 0
    ready: str = ""
    oldest: str = ""
    running: str = ""
    failed: str = ""
    throughput: tuple[int, ...] = ()
    rate: str = ""
    workers: str = ""
    has_no_worker: bool = False
    blocked: str = ""
    version: str = ""
    server: str = ""

    @classmethod
    def of(cls, state: State) -> Self:
        told, problem = state.summary, state.problem
        health = {"critical": _("Critical"), "warning": _("Warning"), "ok": _("Healthy")}
        if problem:
            label, style = words.label(problem), "verdict verdict-failed"
        else:
            assert told is not None
            label, style = health[told.health], HEALTH[told.health]
        row: dict[str, Any] = {
            "id": links.element_id(f"{state.name} {state.url}"),
            "name": state.name,
            "url": f"{state.url}/admin/",
            "state": label,
            "style": style,
            "why": words.sentence(problem, state.detail) if problem else "",
            "is_trouble": state.is_trouble,
            "is_old": problem is not None and told is not None,
            "age": spoken(max(1.0, state.age_seconds)) if problem and told else "",
            "has_state": told is not None,
        }
        return cls(**row, **numbers_of(state))


def numbers_of(state: State) -> dict[str, Any]:
    """The figures of a row; none if the installation never told its state."""
    told = state.summary
    if told is None:
        return {}
    queues = sorted(told.queues, key=lambda queue: (-(queue.oldest_seconds or 0), -queue.ready, queue.name))
    shown = [QueueRow.of(queue) for queue in queues[:QUEUES_SHOWN]]
    return {
        "critical": decimal(told.critical),
        "warnings": decimal(told.warnings),
        "first": shown[0] if shown else None,
        "others": tuple(shown[1:]),
        "more": len(queues) - len(shown),
        "ready": decimal(told.ready),
        "oldest": "" if told.oldest_seconds is None else spoken(told.oldest_seconds),
        "running": decimal(told.running),
        "failed": decimal(told.failed),
        "throughput": told.throughput,
        "rate": decimal(sum(told.throughput) / MINUTES, 0 if sum(told.throughput) >= 10 * MINUTES else 1),
        "workers": _("%(alive)s of %(of)s") % {"alive": decimal(told.alive), "of": decimal(told.workers)},
        "has_no_worker": told.alive == 0,
        "blocked": decimal(told.blocked),
        "version": told.version,
        "server": told.server_version,
    }


@dataclass(frozen=True)
class LineRow:
    """One line that needs attention, with the name of its installation; `is_old`: as of its last known state."""

    name: str
    text: str
    url: str
    age: SafeString | str
    is_critical: bool
    is_old: bool

    @classmethod
    def of(cls, state: State, line: Line, now: datetime) -> Self:
        is_critical = line.severity == 1
        return cls(state.name, line.text, line.url, age(line.since, now), is_critical, state.problem is not None)


@dataclass(frozen=True)
class HitRow:
    """The finds of one installation."""

    name: str
    url: str
    matches: tuple[Any, ...]
    why: str

    @classmethod
    def of(cls, hit: Hit) -> Self:
        why = f"{words.label(hit.problem)}: {words.sentence(hit.problem, hit.detail)}" if hit.problem else ""
        return cls(hit.name, f"{hit.url}/admin/", hit.matches, why)
