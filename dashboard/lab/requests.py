"""Runs requested on a page: presets, the form, and rows that a worker runs one after the other."""

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from django import forms
from django.db import connection
from django.db.models import QuerySet
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.lab import drill, runner
from dashboard.lab.forkserver import Forkserver
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.schema import LabRefused
from dashboard.lab.worker import LIMITS, VARIED, Plan
from dashboard.models import LabRun
from tasks.admin.forms import WholeNumberField
from tasks.framework.declaration import handler
from tasks.models import Task
from tasks.operations import tokens
from tasks.operations.verb import short_waits
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch
from tasks.support.durations import StatementTimestamp


@dataclass(frozen=True)
class Preset:
    """A named load: the patterns to compare, and the numbers of the form."""

    name: str
    label: Promise
    text: Promise
    patterns: tuple[str, ...]
    numbers: dict[str, Any]


PRESETS = (
    Preset(
        "double-click",
        gettext_lazy("The Monday morning double click"),
        gettext_lazy("Two processes start the same mailing at once."),
        ("unsafe", "double_checked", "skip_locked_claim"),
        {"workers": 2, "items": 60, "work_ms": 10},
    ),
    Preset(
        "kill",
        gettext_lazy("kill -9 in the middle"),
        gettext_lazy("Kills three busy workers: what repeats, what is lost, what hangs?"),
        ("double_checked", "skip_locked_claim", "cache_lock_naive", "account_pessimistic"),
        {"workers": 4, "items": 80, "work_ms": 20, "kill": 3},
    ),
    Preset(
        "slots",
        gettext_lazy("Three at once, killed"),
        gettext_lazy("Three ways to keep a limit of 3: which leak slots when workers are killed and sessions cut?"),
        ("slots_by_index", "slots_by_counter", "slots_by_advisory_lock"),
        {"workers": 6, "items": 600, "work_ms": 20, "kill": 2, "cut": 2},
    ),
    Preset(
        "cron",
        gettext_lazy("Cron overlaps"),
        gettext_lazy("Eight overlapping runs of one command."),
        ("unsafe", "double_checked", "double_checked_batched", "advisory_lock", "cache_lock"),
        {"workers": 8, "items": 120, "work_ms": 2},
    ),
    Preset(
        "hot-account",
        gettext_lazy("One hot account"),
        gettext_lazy("All workers change one balance, with some work between read and write."),
        ("account_unsafe", "account_pessimistic", "account_optimistic"),
        {"workers": 8, "items": 120, "work_ms": 5},
    ),
    Preset(
        "outsiders",
        gettext_lazy("Others hold the rows"),
        gettext_lazy("Two outside processes lock and change the same rows."),
        ("unsafe", "double_checked", "double_checked_nowait", "optimistic_complete", "skip_locked_claim"),
        {"workers": 4, "items": 80, "work_ms": 5, "outside_lockers": 2},
    ),
    Preset(
        "crossing",
        gettext_lazy("Where the lines cross"),
        gettext_lazy("A lock held during the work, compared with a claim by version, for longer and longer work."),
        ("skip_locked_held", "optimistic_claim"),
        {"workers": 4, "items": 120, "vary": "work_ms", "values": "0, 1, 2, 5, 10, 20"},
    ),
    Preset(
        "crowd",
        gettext_lazy("One more worker"),
        gettext_lazy("The same two patterns with 1 to 8 workers."),
        ("skip_locked_held", "optimistic_claim"),
        {"items": 120, "work_ms": 2, "vary": "workers", "values": "1, 2, 4, 8"},
    ),
    Preset(
        "all",
        gettext_lazy("All patterns, same load"),
        gettext_lazy("Runs every pattern in turn; takes about a minute."),
        (),
        {"workers": 4, "items": 100, "work_ms": 2},
    ),
)
PRESETS_BY_NAME = {preset.name: preset for preset in PRESETS}


LABELS = {
    "workers": gettext_lazy("Workers"),
    "items": gettext_lazy("Items"),
    "work_ms": gettext_lazy("Work per item (ms)"),
    "kill": gettext_lazy("Kills (-9)"),
    "cut": gettext_lazy("Sessions cut"),
    "outside_lockers": gettext_lazy("Outside lockers"),
    "remote_ms": gettext_lazy("Remote call (ms)"),
    "seed": gettext_lazy("Seed"),
    "seconds": gettext_lazy("Time limit (s)"),
}
# Limits for a page, because the server has other work; the command allows more.
PAGE_LIMITS = {"workers": 12, "items": 2000, "work_ms": 1000, "seconds": 120, "remote_ms": 2000}


class LabForm(forms.Form):
    patterns = forms.MultipleChoiceField(
        label=gettext_lazy("Patterns"),
        choices=lambda: [(name, name) for name in PATTERNS],  # apps register theirs when they are loaded
        widget=forms.CheckboxSelectMultiple,
        required=False,
        help_text=gettext_lazy("None ticked: all patterns."),
    )
    vary = forms.ChoiceField(
        label=gettext_lazy("Vary"),
        choices=[("", gettext_lazy("nothing")), *((name, LABELS[name]) for name in VARIED)],
        required=False,
    )
    values = forms.CharField(
        label=gettext_lazy("over"),
        required=False,
        max_length=100,
        help_text=gettext_lazy("For example 1, 2, 4, 8"),
    )

    alongside = forms.BooleanField(
        label=gettext_lazy("Start beside another run"),
        required=False,
        help_text=gettext_lazy("Each slows the other down."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, label in LABELS.items():
            least, most = LIMITS[name]
            self.fields[name] = WholeNumberField(
                label=label,
                min_value=least,
                max_value=PAGE_LIMITS.get(name, most),
                initial=getattr(Plan, name),
            )

    @property
    def numbers(self) -> list[forms.BoundField]:
        return [self[name] for name in LABELS]

    def clean_values(self) -> list[int]:
        """The values to vary over, each within the bounds of its number."""
        name, text = self.cleaned_data.get("vary", ""), self.cleaned_data["values"]
        if not name:
            return []
        field, values = self.fields[name], [part.strip() for part in text.split(",") if part.strip()]
        if len(values) < 2:
            raise forms.ValidationError(_("Give at least two values, separated by commas."))
        return [field.clean(value) for value in values]

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        number = len(cleaned.get("patterns") or PATTERNS) * max(1, len(cleaned.get("values") or []))
        if number > MOST_RUNS:
            text = _("That is %(number)d runs: ask for %(most)d at most.")
            raise forms.ValidationError(text % {"number": number, "most": MOST_RUNS})
        return cleaned

    def plans(self) -> list[Plan]:
        data = self.cleaned_data
        numbers = {name: data[name] for name in LABELS}
        plans = [Plan(name, **numbers, alongside=data["alongside"]) for name in data["patterns"] or PATTERNS]
        return varied(plans, data["vary"], data["values"]) if data["vary"] else plans


def varied(plans: Iterable[Plan], name: str, values: Sequence[int]) -> list[Plan]:
    changes: list[dict[str, Any]] = [{name: value} for value in values]
    return [replace(plan, **change) for plan in plans for change in changes]


logger = logging.getLogger(__name__)
State = LabRun.State
UNFINISHED = (State.WAITING, State.RUNNING)
LAST_RUNS = 500
MOST_RUNS = 40  # in one batch
RUN_LAB = "dashboard.tasks.run_lab"
VERSION = "SELECT split_part(current_setting('server_version'), ' ', 1) AS version"


def request_runs(plans: Sequence[Plan], token: str, who: Who) -> str:
    """Store the plans and enqueue their task, once for each token. Returns the batch's name."""

    def create() -> str:
        task = handler(RUN_LAB).enqueue(token)
        runs = LabRun.objects.bulk_create(
            LabRun(batch=token, pattern=plan.pattern, plan=plan.as_dict(), actor=who.actor, task_id=int(task.id))
            for plan in plans
        )
        audit.record(connection, who, "run lab", [Change(f"lab run:{run.pk}") for run in runs])
        return token

    return tokens.once(token, create).target


def run_batch(batch: str) -> dict[str, int]:
    """Run the rest of the batch, one run after the other; a run that fails stores its error."""
    runs = LabRun.objects.filter(batch=batch)
    end(
        runs.filter(state=State.RUNNING),
        state=State.FAILED,
        error="Its worker died in the middle. What it left in the database is gone.",
    )
    with closing(Forkserver()) as forkserver:
        for run in runs.filter(state=State.WAITING).order_by("pk"):
            run_one(run, forkserver)
    states = list(runs.values_list("state", flat=True))
    return {state: states.count(state) for state in State.values}


def run_one(run: LabRun, forkserver: Forkserver) -> None:
    row = LabRun.objects.filter(pk=run.pk)
    if not row.filter(stop_requested_at=None).update(state=State.RUNNING, started_at=StatementTimestamp()):
        end(row, state=State.FAILED, error="It was stopped before it began.")
        return

    def progress(effects: int) -> bool:
        row.update(effects=effects)
        return row.filter(stop_requested_at=None).exists()

    columns: dict[str, Any] = {"state": State.FAILED}
    try:
        if run.pattern == drill.NAME:
            columns = {"effects": 1, "spans": [asdict(event) for event in drill.kill_a_worker(progress)]}
        else:
            outcome = runner.run(
                Plan(**run.plan),
                progress=progress,
                begun=lambda schema: row.update(schema=schema),
                forkserver=forkserver,
            )
            columns = columns_of(outcome)
        columns["state"] = State.FINISHED
    except LabRefused as error:
        columns["error"] = str(error)
    except Exception as error:
        logger.exception("lab run %s failed", run.pk)
        columns["error"] = f"{type(error).__name__}: the log of the worker says more."
    end(row, **columns)


def columns_of(outcome: runner.Outcome) -> dict[str, Any]:
    """The columns of a run's result. Its numbers mean little without the server.

    The CPUs are those of the worker's machine, which need not be the server's.
    """
    [row] = fetch(connection, VERSION)
    return {
        "effects": outcome.result.processed + outcome.result.duplicates,
        "result": outcome.result.as_dict(),
        "spans": outcome.spans,
        "statements": [[statement.strip(), number] for statement, number in outcome.statements],
        "waits": outcome.waits,
        "server": f"PostgreSQL {row['version']}, {os.cpu_count()} CPUs",
    }


def end(row: "QuerySet[LabRun]", **columns: Any) -> None:
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
    if run.state not in UNFINISHED or Task.objects.unfinished().filter(pk=run.task_id or 0).exists():
        return False
    # The run may have ended, and its task after it, since its row was read.
    return LabRun.objects.filter(pk=run.pk, state__in=UNFINISHED).exists()
