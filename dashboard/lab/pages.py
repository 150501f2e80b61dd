"""Runs for the pages: results, the best of each column, exports, and the running one at this moment."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any, NamedTuple

from django.db import DatabaseError, connection
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from dashboard.lab import charts, conclusions, drill, measure, requests
from dashboard.lab.conclusions import Case, load_of
from dashboard.lab.measure import Result, Span
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.worker import LIMITS, VARIED, Plan
from dashboard.locks import activity, attribution
from dashboard.locks.activity import Activity
from dashboard.locks.attribution import ROWS_SHOWN, Behind, HeldRow, rows_by_pid
from dashboard.locks.limits import limited
from dashboard.locks.rows import busy_row, tree_rows
from dashboard.locks.tree import RowRef, Session, build_tree, tree_lines
from dashboard.models import LabRun
from dashboard.numbers import milliseconds, rate
from tasks.diagnosis.finding import command
from tasks.models import Task
from tasks.support.database import fetch, sqlstate

DEFAULTS = {field.name: field.default for field in fields(Plan)}
# Columns in which less is better.
FEWER = ("lost_races", "wait_ms_p95", "queries_per_item")
COMPARED = ("items_per_second", *FEWER)


class Column(NamedTuple):
    """A number of a result on the pages."""

    name: str
    heading: Promise
    format: Callable[[Any], str] = str


COLUMNS = (
    Column("items_per_second", _("Items/s"), rate),
    Column("duplicates", _("Duplicates")),
    Column("lost_updates", _("Lost updates")),
    Column("lost_work", _("Lost work")),
    Column("lost_races", _("Lost races")),
    Column("order_inversions", _("Out of order")),
    Column("wait_ms_p95", _("Wait p95"), milliseconds),
    Column("queries_per_item", _("Queries / item"), rate),
)
MORE_COLUMNS = (
    Column("wait_ms_p50", _("Wait p50"), milliseconds),
    Column("retries", _("Retries")),
    Column("repeated_calls", _("Calls repeated")),
    Column("kills", _("Kills")),
    Column("cuts", _("Sessions cut")),
)


def again(refill_ms: int | None) -> str:
    return gettext("never") if refill_ms is None else milliseconds(refill_ms)


# Shown if a pattern that keeps a limit is among the runs.
SLOT_COLUMNS = (
    Column("most_at_once", _("Most at once")),
    Column("leaked_slots", _("Leaked slots")),
    Column("refill_ms", _("All slots in use again"), again),
)


class Cell(NamedTuple):
    """One number of a run. `is_bad`: the pattern is unsafe; `mark`: "best" or "worst" of its column."""

    heading: Promise
    text: str
    is_bad: bool
    mark: str


def command_of(pattern: str, numbers: Mapping[str, Any], *more: str) -> str:
    """The command for this run, with non-default numbers; an empty pattern means all of them."""
    asked = {name: numbers[name] for name in LIMITS if numbers.get(name, DEFAULTS[name]) != DEFAULTS[name]}
    parts = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    return command("run_pattern", pattern or "--all", *parts, *more)


@dataclass(frozen=True)
class RunLine:
    """One run, and its numbers once it has some."""

    run: LabRun
    case: Case | None
    varied: str
    best: frozenset[str]  # the columns in which no clean run is better
    worst: frozenset[str]  # the columns in which no clean run is worse
    fits: bool  # it was the fastest clean run under this load, of all or for its kind of rows
    has_slots: bool = False  # one of the runs kept a limit

    @property
    def result(self) -> Result | None:
        return self.case.result if self.case else None

    @property
    def cells(self) -> list[Cell]:
        return [self.cell(column) for column in (*COLUMNS, *(SLOT_COLUMNS if self.has_slots else ()))]

    @property
    def more_cells(self) -> list[Cell]:
        return [self.cell(column) for column in MORE_COLUMNS]

    def cell(self, column: Column) -> Cell:
        assert self.result is not None
        value, (name, heading, told) = getattr(self.result, column.name), column
        if column in SLOT_COLUMNS and not self.result.slots:
            return Cell(heading, "\u2013", False, "")
        allowed = {"duplicates": self.result.may_repeat, "most_at_once": self.result.slots}
        allowed |= dict.fromkeys(("lost_updates", "lost_work", "leaked_slots"), 0)
        mark = "best" if name in self.best else "worst" if name in self.worst else ""
        return Cell(heading, told(value), name in allowed and value > allowed[name], mark)

    @property
    def plan(self) -> Plan:
        return Plan(**self.run.plan)

    @property
    def is_over(self) -> bool:
        return self.run.state not in requests.UNFINISHED or self.is_orphaned

    @cached_property
    def is_orphaned(self) -> bool:
        return requests.is_orphaned(self.run)

    @property
    def is_drill(self) -> bool:
        return self.run.pattern == drill.NAME

    @property
    def events(self) -> list[drill.Event]:
        """Events of a drill; empty for other runs."""
        return [drill.Event(**event) for event in self.run.spans or []] if self.is_drill else []

    @property
    def recovered_ms(self) -> int | None:
        return drill.recovered_ms(self.events)

    @property
    def load(self) -> str:
        return "" if self.is_drill else load_of(self.plan)

    @property
    def command(self) -> str:
        return command(drill.NAME) if self.is_drill else command_of(self.run.pattern, self.run.plan)


@dataclass(frozen=True)
class Comparison:
    lines: Sequence[RunLine]
    varied: str

    @property
    def columns(self) -> Sequence[Column]:
        return (*COLUMNS, *(SLOT_COLUMNS if any(line.has_slots for line in self.lines) else ()))

    @property
    def is_over(self) -> bool:
        return all(line.is_over for line in self.lines)

    @property
    def cases(self) -> list[Case]:
        return [line.case for line in self.lines if line.case]

    @cached_property
    def conclusion(self) -> list[str]:
        """The conclusions, once all runs are over."""
        return charts.conclusion_of(self.cases, self.varied) if self.is_over else []

    @cached_property
    def sweep(self) -> charts.Sweep | None:
        return charts.draw_sweep(self.cases, self.varied) if self.varied else None

    @cached_property
    def bars(self) -> charts.Bars | None:
        """The chart of a comparison; a sweep has curves instead."""
        best = [line.case for line in self.lines if line.case and line.fits]
        return None if self.varied else charts.draw_bars(self.cases, best)

    @property
    def server(self) -> str:
        """The server of the measurements, if all runs had the same."""
        return the_only({line.run.server for line in self.lines})

    @property
    def load(self) -> str:
        """The load in few words, without the varied number; empty if the runs differ otherwise."""
        return the_only({load_of(case.plan, without=self.varied) for case in self.cases})


def the_only(texts: Set[str]) -> str:
    """The one text of the set; empty if there are none or several."""
    return next(iter(texts)) if len(texts) == 1 else ""


def comparison_of(runs: Sequence[LabRun]) -> Comparison:
    """Put runs side by side, with the varied number; under one load the best of each column is marked."""
    varied = what_varies(runs)
    cases = {run.pk: Case(Plan(**run.plan), Result.from_dict(run.result)) for run in runs if run.result}
    is_one_load = len({load_of(Plan(**run.plan)) for run in runs}) < 2
    clean = {pk: case for pk, case in cases.items() if is_one_load and case.result.is_clean}
    fitting = conclusions.fitting(list(clean.values()))
    results = [case.result for case in clean.values()]
    has_slots = any(case.result.slots for case in cases.values())
    best, worst = extremes(results, min, max), extremes(results, max, min)
    lines = []
    for run in runs:
        number, case = f"{varied}={run.plan[varied]}" if varied else "", cases.get(run.pk)
        won, lost = (columns_of(clean.get(run.pk), values) for values in (best, worst))
        lines.append(RunLine(run, case, number, won, lost, any(case is one for one in fitting), has_slots))
    return Comparison(lines, varied)


def extremes(clean: Sequence[Result], fewer: Callable[..., float], more: Callable[..., float]) -> dict[str, float]:
    """One end of each column in which the runs differ: by `fewer` where less is better, by `more` in the others."""
    columns = {name: {getattr(result, name) for result in clean} for name in COMPARED}
    return {name: (fewer if name in FEWER else more)(values) for name, values in columns.items() if len(values) > 1}


def columns_of(case: Case | None, values: Mapping[str, float]) -> frozenset[str]:
    """The columns in which this run has the given values."""
    return frozenset(name for name, value in values.items() if case and getattr(case.result, name) == value)


def what_varies(runs: Sequence[LabRun]) -> str:
    """The one number that differs between runs of one pattern; empty if none or several do."""
    pairs = combinations(runs, 2)
    return the_only(
        {
            name
            for one, other in pairs
            for name in VARIED
            if one.pattern == other.pattern and one.plan[name] != other.plan[name]
        }
    )


def rows(board: Comparison) -> list[dict[str, Any]]:
    return [{"run": line.run.pk, **line.run.plan, **line.result.as_dict()} for line in board.lines if line.result]


def as_json(board: Comparison) -> dict[str, Any]:
    return {"runs": rows(board), "conclusion": board.conclusion, "server": board.server}


def as_csv(board: Comparison) -> str:
    found, written = rows(board), io.StringIO()
    writer = csv.DictWriter(written, list(found[0]) if found else ["run"])
    writer.writeheader()
    writer.writerows(
        {name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()} for row in found
    )
    return written.getvalue()


def as_markdown(board: Comparison) -> str:
    """Text for a pull request: the load, the table, the conclusions, and the commands that repeat the runs."""
    headings = conclusions.headings(case.result for case in board.cases)
    table: list[Sequence[str]] = [headings, ("---", *["---:"] * (len(headings) - 2), "---")]
    has_slots = len(headings) > len(conclusions.HEADINGS)
    commands = []
    for line in board.lines:
        if line.result:
            label = f"`{line.run.pattern}` {line.varied}".rstrip()
            table.append(conclusions.cells(label, line.result, fits=line.fits, has_slots=has_slots))
            commands.append(line.command)
    parts = [
        f"**Rowlock lab** {', '.join(filter(None, (board.load, board.server)))}".rstrip(),
        "\n".join(f"| {' | '.join(row)} |" for row in table),
        "\n".join(f"- {sentence}" for sentence in board.conclusion),
        "\n".join(["```", *commands, "```"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


MOST_ROWS = 200  # rows whose holders are checked
NOW_SEEN = "SELECT current_setting('search_path') AS path"
SEE = "SELECT set_config('search_path', %(path)s::text, true)"
# The ledger's counts so far.
COUNTERS = """
WITH line AS (
    SELECT count(*) FILTER (WHERE kind = 'effect')::int AS effects,
        count(DISTINCT item) FILTER (WHERE kind = 'effect')::int AS processed,
        count(*) FILTER (WHERE kind = 'lost')::int AS thrown_away, count(*) FILTER (WHERE kind = 'kill')::int AS kills,
        extract(epoch FROM clock_timestamp() - min(began))::float8 AS seconds
    FROM lab_ledger WHERE kind <> 'session'
)
SELECT effects, processed, effects - processed AS duplicates, thrown_away, kills,
    coalesce(processed / nullif(seconds, 0), 0) AS items_per_second
FROM line
"""


class CopiedRow(RowRef):
    """A row of a run's schema: the live row with the same id is another one."""

    @property
    def url(self) -> str:
        return ""


@dataclass(frozen=True)
class LiveRun:
    """One snapshot of a run, for readers of all languages. `workers`: process numbers by pid, below 0 for outsiders."""

    schema: str
    counters: dict[str, Any]
    seen: Activity
    held: list[HeldRow]
    workers: dict[int, int]
    spans: list[Span]

    @cached_property
    def members(self) -> list[Session]:
        """The run's sessions, and those that block them or wait for them, directly or indirectly."""
        found = {
            session.pid
            for session in self.seen.sessions
            if session.pid in self.workers or (session.identity.name == self.schema and session.blocked_by)
        }
        size = -1
        while size < len(found):
            size = len(found)
            for session in self.seen.sessions:
                if session.pid in found:
                    found.update(session.blocked_by)
                elif found.intersection(session.blocked_by):
                    found.add(session.pid)
        return [self.seen.by_pid[pid] for pid in sorted(found) if pid in self.seen.by_pid]

    @property
    def waiting(self) -> int:
        return sum(bool(session.blocked_by) for session in self.members)

    def locks(self) -> dict[str, Any]:
        """The lock tree and the workers that progress, with the rows that they hold, for one reader's page."""
        rows = rows_by_pid(self.seen, self.held)
        shown = {pid: tuple(CopiedRow(row.model, row.id) for row in refs[:ROWS_SHOWN]) for pid, refs in rows.items()}
        behind = {pid: Behind(rows=refs, more=len(rows[pid]) - len(refs)) for pid, refs in shown.items()}
        sessions = [
            replace(session, label=measure.worker_name(self.workers[session.pid]))
            if session.pid in self.workers
            else session
            for session in self.members
        ]
        lines = tree_lines(build_tree(sessions, self.seen.locks))
        busy = [one for one in sessions if one.label and one.state != "idle" and not one.blocked_by]
        busy.sort(key=lambda session: self.workers[session.pid])
        return {
            "tree": tree_rows(lines, behind, may_signal=False),
            "busy": [busy_row(session, behind.get(session.pid)) for session in busy],
        }


GONE = ("42P01", "3F000", "42883", "55P03")  # the table, schema or function is gone, or is being dropped


def look() -> LiveRun | None:
    """The running run on this database; None if there is none, or if it is just ending."""
    run = LabRun.objects.filter(state=LabRun.State.RUNNING).exclude(schema="").order_by("-pk").first()
    if run is None or run.pattern not in PATTERNS:
        return None
    try:
        with limited(connection):
            # From here on statements see only the run's schema.
            [before] = fetch(connection, NOW_SEEN)
            fetch(connection, SEE, {"path": run.schema})
            rows = PATTERNS[run.pattern].rows
            [counters] = fetch(connection, COUNTERS)
            workers = {row["pid"]: row["worker"] for row in fetch(connection, measure.WORKERS)}
            following = rows.following()[:MOST_ROWS] if rows.following else Task.objects.none()
            held = attribution.held(following.model, [row.pk for row in following.only("pk")])
            spans = measure.read_spans(connection, rows.work, latest=measure.LATEST_SPANS)
            found = LiveRun(run.schema, counters, activity.read(), held, workers, spans)
            fetch(connection, SEE, before)
            return found
    except DatabaseError as error:
        if sqlstate(error) in GONE:
            return None
        raise
