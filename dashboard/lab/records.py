"""Runs requested on a page: stored as rows, run by a worker one after the other, watched and stopped."""

import logging
import os
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from dashboard.lab import drill, runner, spawning
from dashboard.lab.plan import Plan
from dashboard.lab.schema import LabRefused
from dashboard.lab.spawning import Nursery
from dashboard.models import LabRun
from tasks.framework.declaration import PostgresTask
from tasks.models import Task
from tasks.operations import tokens
from tasks.operations.chunks import short_waits
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch
from tasks.support.durations import StatementTimestamp

logger = logging.getLogger(__name__)
State = LabRun.State
UNFINISHED = (State.WAITING, State.RUNNING)
LAST_RUNS = 500
MOST_RUNS = 40  # in one batch
VERSION = "SELECT split_part(current_setting('server_version'), ' ', 1) AS version"


def ask(plans: Sequence[Plan], token: str, who: Who) -> str:
    """Store the plans and enqueue their task, once for each token. Returns the batch's name."""
    from dashboard.tasks import run_lab  # dashboard.tasks imports this module

    if not 1 <= len(plans) <= MOST_RUNS:
        raise LabRefused(f"That is {len(plans)} runs: ask for 1 to {MOST_RUNS}.")

    def create() -> str:
        task = PostgresTask.of(run_lab).enqueue(token)
        runs = LabRun.objects.bulk_create(
            LabRun(batch=token, pattern=plan.pattern, plan=plan.as_dict(), actor=who.actor, task_id=int(task.id))
            for plan in plans
        )
        audit.record(connection, who, "run lab", [Change(f"lab run:{run.pk}") for run in runs])
        return token

    return tokens.once(token, create).target


def carry_out(batch: str) -> dict[str, int]:
    """Run the rest of the batch, one run after the other; a run that fails stores its error."""
    _end(
        LabRun.objects.filter(batch=batch, state=State.RUNNING),
        state=State.FAILED,
        error="Its worker died in the middle. What it left in the database is gone.",
    )
    with spawning.opened() as crew:
        for run in LabRun.objects.filter(batch=batch, state=State.WAITING).order_by("pk"):
            _carry_out(run, crew)
    states = LabRun.objects.filter(batch=batch).values_list("state", flat=True)
    return {state: list(states).count(state) for state in State.values}


def _carry_out(run: LabRun, crew: Nursery) -> None:
    row = LabRun.objects.filter(pk=run.pk)
    if not row.filter(stop_requested_at=None).update(state=State.RUNNING, started_at=StatementTimestamp()):
        _end(row, state=State.FAILED, error="It was stopped before it began.")
        return

    def progress(effects: int) -> bool:
        row.update(effects=effects)
        return row.filter(stop_requested_at=None).exists()

    try:
        columns = drilled(progress) if run.pattern == drill.NAME else ran(run, row, progress, crew)
    except LabRefused as error:
        _end(row, state=State.FAILED, error=str(error))
    except Exception as error:
        logger.exception("lab run %s failed", run.pk)
        _end(row, state=State.FAILED, error=f"{type(error).__name__}: the log of the worker says more.")
    else:
        _end(row, state=State.FINISHED, **columns)


def drilled(progress: runner.Progress) -> dict[str, Any]:
    """Run a drill. Returns the columns of its result."""
    return {"effects": 1, "spans": [event.as_dict() for event in drill.carry_out(progress)]}


def ran(run: LabRun, row: "QuerySet[LabRun]", progress: runner.Progress, crew: Nursery) -> dict[str, Any]:
    """Run a pattern. Returns the columns of its result."""
    plan = Plan.from_dict(run.plan)
    outcome = runner.run_whole(plan, progress=progress, begun=lambda name: row.update(schema=name), crew=crew)
    return {
        "effects": outcome.result.processed + outcome.result.duplicates,
        "result": outcome.result.as_dict(),
        "spans": [span.as_json() for span in outcome.spans],
        "statements": [[statement.strip(), number] for statement, number in outcome.statements],
        "waits": [wait.as_json() for wait in outcome.waits],
        "server": server(),
    }


def server() -> str:
    """The server of a run's measurements: numbers mean little without it.

    The CPUs are those of the worker's machine, which need not be the server's.
    """
    [row] = fetch(connection, VERSION)
    return f"PostgreSQL {row['version']}, {os.cpu_count()} CPUs"


def _end(row: "QuerySet[LabRun]", **columns: Any) -> None:
    row.update(finished_at=StatementTimestamp(), schema="", **columns)


def stop(run: LabRun, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Ask a run to end; False if it is over, or was asked before."""
    row = LabRun.objects.filter(pk=run.pk, state__in=UNFINISHED, stop_requested_at=None)
    with short_waits(rollback=dry_run):
        is_asked = bool(row.update(stop_requested_at=StatementTimestamp()))
        if is_asked:
            audit.record(connection, who, "stop lab", [Change(f"lab run:{run.pk}")], reason)
    return is_asked


def latest_of_each(patterns: Iterable[str]) -> dict[str, LabRun]:
    """The latest finished run of each pattern with its statements, among the latest LAST_RUNS runs."""
    last = LabRun.objects.order_by("-pk").values("pk")[:LAST_RUNS]
    found = LabRun.objects.filter(
        pk__in=last, pattern__in=list(patterns), state=State.FINISHED, statements__isnull=False
    )
    latest = found.order_by("pattern", "-pk").distinct("pattern")
    return {run.pattern: run for run in latest.only("pattern", "statements")}


def is_orphaned(run: LabRun) -> bool:
    """True if the run will never end, because its task has ended."""
    return run.state in UNFINISHED and not Task.objects.unfinished().filter(pk=run.task_id or 0).exists()
