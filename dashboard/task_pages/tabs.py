"""The tabs of the list of tasks: one a state, with how many tasks there are."""

from dataclasses import dataclass, replace

from django.db import DatabaseError, connection
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from dashboard import links
from dashboard.live import snapshots
from dashboard.numbers import decimal
from tasks.admin.read_only import estimate
from tasks.diagnosis import stats
from tasks.models import Task
from tasks.operations.filters import TaskFilter
from tasks.support.addresses import address
from tasks.support.database import fetch, sqlstate

CAP = 10_000
EVERY_SECONDS = 3.0
TOO_SLOW = {"55P03", "57014"}  # lock timeout, statement timeout

CANCELLED = """
SELECT count(*) AS number FROM (SELECT FROM tasks_task WHERE status = 'CANCELLED' LIMIT %(cap)s::int) AS capped
"""
ALL = "SELECT count(*) AS number FROM (SELECT FROM tasks_task LIMIT %(cap)s::int) AS capped"


@dataclass(frozen=True)
class Tab:
    """One tab. `number`: as shown, empty while it is not known; `is_here`: the list shows this state alone."""

    label: str | Promise
    url: str
    number: str
    is_here: bool


@dataclass(frozen=True)
class Tally:
    """Tasks by state, each counted up to CAP but for `all` and `done`, which are estimates above it."""

    all: int
    ready: int
    running: int
    later: int
    stuck: int
    failed: int
    done: int
    cancelled: int


TABS: tuple[tuple[str, str | Promise, TaskFilter], ...] = (
    ("all", gettext_lazy("All"), TaskFilter()),
    ("ready", gettext_lazy("Ready"), TaskFilter(statuses=("READY",), due="now")),
    ("running", gettext_lazy("Running"), TaskFilter(statuses=("PROCESSING",))),
    ("later", gettext_lazy("Scheduled"), TaskFilter(statuses=("READY",), due="later")),
    ("stuck", gettext_lazy("Stuck"), TaskFilter()),
    ("failed", gettext_lazy("Failed"), TaskFilter(statuses=("FAILED",))),
    ("done", gettext_lazy("Done"), TaskFilter(statuses=("COMPLETED",))),
    ("cancelled", gettext_lazy("Cancelled"), TaskFilter(statuses=("CANCELLED",))),
)


def tabs(chosen: TaskFilter) -> tuple[Tab, ...]:
    """The tabs beside this filter; they keep its other conditions, and count only if there are none."""
    others = replace(chosen, statuses=(), due="")
    tally = known_tally() if others.is_empty else None
    found = []
    for name, label, state in TABS:
        here = replace(others, statuses=state.statuses, due=state.due)
        url = address("admin:ops_stale") if name == "stuck" else links.listed(here)
        number = shown(name, getattr(tally, name)) if tally else ""
        found.append(Tab(label, url, number, here == chosen and name != "stuck"))
    return tuple(found)


def shown(name: str, number: int) -> str:
    if number < CAP:
        return decimal(number)
    return f"≈ {decimal(number)}" if name in ("all", "done") else f"{decimal(CAP)}+"


def known_tally() -> Tally | None:
    """The tally of these seconds, shared by all tabs; None if a table is locked or too slow."""
    try:
        return snapshots.current("tabs", EVERY_SECONDS).once(count)
    except DatabaseError as error:
        if sqlstate(error) not in TOO_SLOW:
            raise
        return None


def count() -> Tally:
    queues = stats.collect(cap=CAP).queues
    total = fetch(connection, ALL, {"cap": CAP})[0]["number"]
    if total >= CAP:
        total = max(CAP, estimate(Task.objects.all()))
    ready, later, running, failed = (
        sum(getattr(queue, field) for queue in queues) for field in ("ready", "scheduled", "processing", "failed")
    )
    cancelled = fetch(connection, CANCELLED, {"cap": CAP})[0]["number"]
    done = max(0, total - ready - later - running - failed - cancelled)
    return Tally(total, ready, running, later, sum(queue.stale for queue in queues), failed, done, cancelled)
