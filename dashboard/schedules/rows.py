"""The table of schedules: what is searched for, one page of it, and each row in texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self

from cronsim import CronSim, CronSimError
from django.db.models import Count, Q
from django.http import QueryDict
from django.utils.dates import WEEKDAYS
from django.utils.functional import Promise
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard import links
from dashboard.numbers import decimal
from dashboard.templatetags.rowlock import age
from tasks.models import Outcome, Schedule, Task, TaskStatus
from tasks.operations import schedules
from tasks.schedule.declared import GONE
from tasks.schedule.ticks import GRACE
from tasks.support import audit, reading
from tasks.support.durations import spoken
from tasks.support.recurrence import ANY_TIME, default_zone

PAGE = 50
LONGEST_SEARCH = 200
STATES: dict[str, Promise] = {
    "": gettext_lazy("All"),
    "late": gettext_lazy("Late"),
    "broken": gettext_lazy("Broken off"),
    "paused": gettext_lazy("Paused"),
    "held": gettext_lazy("Skipped or missed"),
    "over": gettext_lazy("Ended"),
}
EVENLY = {f"*/{step}": step for step in range(2, 31) if 60 % step == 0}  # minutes of every hour
VERDICTS = {TaskStatus.PROCESSING.value: "running"}  # else the state in lower case


class Tab(NamedTuple):
    """One state with its number of schedules."""

    label: str
    number: str
    url: str
    is_here: bool


@dataclass(frozen=True)
class Search:
    """The schedules whose name or task contains `text`, in this state, after this name."""

    text: str = ""
    state: str = ""
    after: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> Self:
        text, state, after = (query.get(key, "")[:LONGEST_SEARCH].replace("\0", "") for key in ("q", "state", "after"))
        return cls(text.strip(), state if state in STATES else "", after)

    def url(self, **changes: str) -> str:
        values = {"q": self.text, "state": self.state, **changes}
        return "?" + urlencode({key: value for key, value in values.items() if value})

    @property
    def here(self) -> str:
        """The address of this page, for the answer to a button."""
        return self.url(after=self.after) if self.text or self.state or self.after else ""

    def conditions(self, now: datetime) -> dict[str, Q]:
        """The condition of each state."""
        return {
            "": Q(),
            "late": Q(paused=False, ended_at__isnull=True, next_at__lt=now - GRACE),
            "broken": ~Q(problem=""),
            "paused": Q(paused=True, problem=""),
            "held": Q(last_outcome__in=(Outcome.SKIPPED, Outcome.MISSED)),
            "over": Q(ended_at__isnull=False),
        }

    def matching(self) -> Q:
        return Q(name__icontains=self.text) | Q(task_path__icontains=self.text) if self.text else Q()


@dataclass(frozen=True)
class Listing:
    """One page of the table. `total`: all schedules that the search matches in any state."""

    rows: list["ScheduleRow"]
    tabs: list[Tab]
    total: int
    first: str = ""
    following: str = ""


def listing(search: Search, now: datetime) -> Listing:
    """The page that the search asks for: three statements, however many schedules there are."""
    found, conditions = Schedule.objects.filter(search.matching()), search.conditions(now)
    counts = found.aggregate(**{f"number_{state}": Count("name", filter=q) for state, q in conditions.items()})
    page = found.filter(conditions[search.state], name__gt=search.after).defer("args", "kwargs")
    rows = list(page.order_by("name")[: PAGE + 1])
    shown, has_more = rows[:PAGE], len(rows) > PAGE
    tasks = [row.last_task_id for row in shown if row.last_task_id]
    statuses = dict(Task.objects.filter(pk__in=tasks).values_list("pk", "status")) if tasks else {}
    tabs = [
        Tab(str(label), decimal(counts[f"number_{state}"]), search.url(state=state), state == search.state)
        for state, label in STATES.items()
        if not state or state == search.state or counts[f"number_{state}"]
    ]
    return Listing(
        [ScheduleRow.of(row, statuses, now) for row in shown],
        tabs,
        counts["number_"],
        first=search.url() if search.after else "",
        following=search.url(after=shown[-1].name) if has_more else "",
    )


@dataclass(frozen=True)
class Words:
    """A recurrence in words; `language` is not empty where they are English on any page."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class ScheduleRow:
    """One line of the table, in texts.

    `key` is the name of its element; `seen` names it with its edition in forms; `is_abroad`: in another zone than the
    project's own.
    """

    key: str
    name: str
    seen: str
    task_path: str
    function: str
    words: Words
    expression: str
    timezone: str
    next: str | SafeString
    last: str | SafeString
    missed: str
    overlap: str
    means: str
    verdict: str = ""
    outcome: str = ""
    task_id: int | None = None
    held_by: int | None = None
    is_abroad: bool = False
    is_late: bool = False
    is_paused: bool = False
    asks_to_resume: bool = False
    is_over: bool = False
    is_declared: bool = False
    may_be_deleted: bool = False
    overridden: str = ""
    paused_by: str = ""
    problem: str = ""
    tasks_url: str = ""
    target: str = ""

    @classmethod
    def of(cls, row: Schedule, statuses: Mapping[int, str], now: datetime) -> Self:
        is_late = schedules.is_late(row, now)
        missed, overlap = Schedule.Missed(row.missed).label, Schedule.Overlap(row.overlap).label
        return cls(
            key=links.element_id(row.name),
            name=row.name,
            seen=seen(row),
            task_path=row.task_path,
            function=row.task_path.rpartition(".")[2],
            words=in_words(row.cron, row.every_seconds),
            expression=row.cron or "",
            timezone=row.timezone if row.cron else "",
            next=age(row.next_at, now),
            last=age(row.last_at, now),
            missed=row.missed,
            overlap=row.overlap,
            means=_("Missed times: %(missed)s. Last task unfinished: %(overlap)s.")
            % {"missed": missed, "overlap": overlap},
            **last_of(row, statuses),
            is_abroad=bool(row.cron) and row.timezone != default_zone(),
            is_late=is_late,
            is_paused=row.paused,
            asks_to_resume=has_backlog(row, now),
            is_over=row.ended_at is not None,
            is_declared=row.declared is not None,
            may_be_deleted=row.declared is None or row.problem == GONE,
            overridden=", ".join(row.overridden),
            paused_by=row.paused_by,
            problem=reading.one_line(row.problem),
            tasks_url=links.tasks(task_paths=(row.task_path,)),
            target=audit.schedule(row.name),
        )


def seen(row: Schedule) -> str:
    """The schedule and its edition, for a form's field."""
    return f"{row.edition} {row.name}"


def has_backlog(row: Schedule, now: datetime) -> bool:
    """True if resuming it would enqueue tasks for the times of the pause."""
    return row.paused and row.missed != Schedule.Missed.SKIP and row.next_at is not None and now - row.next_at > GRACE


def last_of(row: Schedule, statuses: Mapping[int, str]) -> dict[str, Any]:
    """Return the outcome of the latest tick: the state of its task, or why it has none."""
    if row.last_outcome in (Outcome.SKIPPED, Outcome.MISSED):
        return {"verdict": "is-stuck", "outcome": Outcome(row.last_outcome).label, "held_by": row.held_by_task_id}
    if not row.last_outcome:
        return {}
    status = statuses.get(row.last_task_id or 0)
    if status is None:
        return {"outcome": Outcome(row.last_outcome).label}  # its task was pruned
    verdict = VERDICTS.get(status, status.lower())
    return {"verdict": f"verdict-{verdict}", "outcome": TaskStatus(status).label, "task_id": row.last_task_id}


def in_words(cron: str | None, every_seconds: int | None) -> Words:
    """The recurrence in words: translated where it has one of the usual shapes, else as cronsim explains it.

    Empty for an expression that only raw SQL can have written: no scheduler can read it, and pauses the schedule.
    """
    if cron is None:
        return Words(_("every %(time)s") % {"time": spoken(every_seconds or 0)})
    try:
        explained = CronSim(cron, ANY_TIME).explain()
    except (CronSimError, ValueError):
        return Words("")
    minute, hour, day, month, weekday = cron.split()
    fixed = f"{int(hour):02}:{int(minute):02}" if minute.isdecimal() and hour.isdecimal() else ""
    match (hour, day, month, weekday):
        case ("*", "*", "*", "*") if minute == "*":
            return Words(_("every minute"))
        case ("*", "*", "*", "*") if minute in EVENLY:
            return Words(_("every %(time)s") % {"time": spoken(60 * EVENLY[minute])})
        case ("*", "*", "*", "*") if minute.isdecimal():
            return Words(_("every hour at :%(minute)s") % {"minute": f"{int(minute):02}"})
        case (_hour, "*", "*", "*") if fixed:
            return Words(_("every day at %(time)s") % {"time": fixed})
        case (_hour, "*", "*", number) if fixed and number.isdecimal():
            return Words(_("%(day)s at %(time)s") % {"day": WEEKDAYS[(int(number) + 6) % 7], "time": fixed})
        case (_hour, number, "*", "*") if fixed and number.isdecimal():
            return Words(_("day %(day)s of the month at %(time)s") % {"day": number, "time": fixed})
    return Words(explained, "en")
