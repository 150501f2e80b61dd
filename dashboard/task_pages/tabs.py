"""The tabs of the list of tasks: one a state, with how many tasks there are."""

from dataclasses import dataclass, replace

from django.db import DatabaseError, connection
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard import links
from dashboard.attention.queues import in_trouble
from dashboard.live import snapshots
from dashboard.numbers import decimal
from tasks.admin.read_only import estimate
from tasks.models import FINISHED, Task
from tasks.operations.filters import TaskFilter
from tasks.panels import Snapshot
from tasks.support.addresses import address
from tasks.support.database import fetch, sqlstate

CAP = 10_000
EVERY_SECONDS = 3.0
TOO_SLOW = {"55P03", "57014"}  # lock timeout, statement timeout

# READY tasks come from three indexes: without a key, with an ordering key, and with a limit. That of ordering keys does
# not tell READY from PROCESSING, so that no row is read: the running ones, which are due, are taken off.
STATES = """
WITH waiting AS MATERIALIZED (
    (SELECT run_after FROM tasks_task
     WHERE status = 'READY' AND ordering_key IS NULL AND concurrency_key IS NULL LIMIT %(cap)s::int)
    UNION ALL
    (SELECT run_after FROM tasks_task
     WHERE status IN ('READY', 'PROCESSING') AND ordering_key IS NOT NULL LIMIT %(cap)s::int)
    UNION ALL
    (SELECT run_after FROM tasks_task WHERE status = 'READY' AND concurrency_key IS NOT NULL LIMIT %(cap)s::int)
), keyed AS (
    SELECT ordering_key FROM tasks_task WHERE status = 'PROCESSING' AND ordering_key IS NOT NULL LIMIT %(cap)s::int
), capped AS (
    SELECT count(*) FILTER (WHERE run_after <= statement_timestamp()) AS due,
        count(*) FILTER (WHERE run_after > statement_timestamp()) AS later FROM waiting
)
SELECT (SELECT count(*) FROM (SELECT FROM tasks_task LIMIT %(cap)s::int) AS part) AS total,
    greatest(0, capped.due - (SELECT count(*) FROM keyed)) AS ready, capped.later,
    (SELECT count(*) FROM (SELECT FROM tasks_task WHERE status = 'PROCESSING' LIMIT %(cap)s::int) AS part) AS running,
    (SELECT count(*) FROM (SELECT FROM tasks_task WHERE status = 'FAILED' LIMIT %(cap)s::int) AS part) AS failed,
    (SELECT count(*) FROM (SELECT FROM tasks_task WHERE status = 'CANCELLED' LIMIT %(cap)s::int) AS part) AS cancelled
FROM capped
"""


@dataclass(frozen=True)
class Tab:
    """One tab. `number`: as shown, empty while it is not known; `is_here`: the list shows this state alone."""

    label: str | Promise
    url: str
    number: str
    is_here: bool


EVERYTHING = TaskFilter()
# Estimated above CAP; the others stop there.
ESTIMATED = ("all", "done")

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


def tabs(snapshot: Snapshot, chosen: TaskFilter = EVERYTHING, *, is_archive: bool = False) -> tuple[Tab, ...]:
    """The tabs beside this filter; they keep its other conditions, and count only if there are none.

    The last one leads to the archive, which is not counted.
    """
    others = replace(chosen, statuses=(), due="")
    numbers = (known_numbers(snapshot) if others.is_empty else None) or {}
    found = []
    for name, label, state in TABS:
        here = replace(others, statuses=state.statuses, due=state.due)
        url = address("admin:ops_stale") if name == "stuck" else links.listed(here)
        is_here = here == chosen and name != "stuck" and not is_archive
        found.append(Tab(label, url, numbers.get(name, ""), is_here))
    return (*found, Tab(_("Archived"), archive_url(chosen), "", is_archive))


def archive_url(chosen: TaskFilter) -> str:
    """The list of archived tasks, with those conditions of this filter that it knows."""
    statuses = [status for status in chosen.statuses if status in FINISHED]
    lists = {"id": chosen.ids, "task": chosen.task_paths, "status": statuses, "key": [chosen.ordering_key]}
    params = {name: str(values[0]) for name, values in lists.items() if len(values) == 1 and values[0]}
    return links.page("admin:tasks_task_archive", **params)


def shown(name: str, number: int, *, is_least: bool) -> str:
    """A number below CAP is exact, unless it counts a part only; the estimates above it say so."""
    if number >= CAP and name in ESTIMATED:
        return f"≈ {decimal(number)}"
    return f"{decimal(min(number, CAP))}+" if number >= CAP or is_least else decimal(number)


def known_numbers(snapshot: Snapshot) -> dict[str, str] | None:
    """The number of each tab in these seconds, shared by all viewers; None if a table is locked or too slow."""
    try:
        found = snapshots.current("tabs", EVERY_SECONDS).once(count)
        return {**found, "stuck": shown("stuck", snapshot.once(in_trouble).stuck, is_least=False)}
    except DatabaseError as error:
        if sqlstate(error) not in TOO_SLOW:
            raise
        return None


def count() -> dict[str, str]:
    """The number of each state. Unless all READY tasks are looked at, those due and those later are "at least"."""
    found = fetch(connection, STATES, {"cap": CAP})[0]
    found["all"] = found["total"] if found["total"] < CAP else max(CAP, estimate(Task.objects.all()))
    others = sum(found[name] for name in ("ready", "later", "running", "failed", "cancelled"))
    found["done"] = max(0, found["all"] - others)
    least = ("ready", "later") if found["ready"] + found["later"] >= CAP else ()
    return {name: shown(name, number, is_least=name in least) for name, number in found.items() if name != "total"}
