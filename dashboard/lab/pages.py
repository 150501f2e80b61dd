"""Runs for the pages: results, the best of each column, and exports."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.lab import charts, conclusions, drill, requests
from dashboard.lab.conclusions import Case
from dashboard.lab.measure import Result
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.worker import LIMITS, Plan
from dashboard.models import LabRun
from tasks.diagnosis.finding import command

DEFAULTS = {field.name: field.default for field in fields(Plan)}
VARIED = ("workers", "work_ms", "items", "outside_lockers", "remote_ms", "kill")
# Columns in which less is better.
FEWER = ("lost_races", "wait_ms_p95", "queries_per_item")


def command_of(pattern: str, numbers: Mapping[str, Any], *more: str) -> str:
    """The command for this run, with non-default numbers; an empty pattern means all of them."""
    asked = {name: numbers[name] for name in LIMITS if numbers.get(name, DEFAULTS[name]) != DEFAULTS[name]}
    parts = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    return command("run_pattern", pattern or "--all", *parts, *more)


@dataclass(frozen=True)
class RunLine:
    """One run; `result` is None until it has numbers. `best`: the columns in which no clean run is better.

    `fits`: it was the fastest clean run under this load, of all or for its kind of rows.
    """

    run: LabRun
    result: Result | None
    varied: str
    best: frozenset[str] = frozenset()
    fits: bool = False

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
    def recovered_ms(self) -> int | None:
        """For a drill: milliseconds from the kill until the task ran again."""
        return drill.recovered_ms(self.events)

    @property
    def events(self) -> list[drill.Event]:
        """Events of a drill; empty for other runs."""
        return [drill.Event(**event) for event in self.run.spans or []] if self.is_drill else []

    @property
    def items(self) -> int:
        return int(self.run.plan["items"])

    @property
    def load(self) -> str:
        """The load in few words; empty for a drill."""
        return "" if self.is_drill else words_of(Plan.from_dict(self.run.plan))

    @property
    def command(self) -> str:
        """The command that repeats this run."""
        return command("kill_drill") if self.is_drill else command_of(self.run.pattern, self.run.plan)

    @property
    def stop_command(self) -> str:
        """The command that stops this run."""
        return command("stop_lab_run", str(self.run.pk))

    @property
    def share(self) -> int:
        """Progress in percent."""
        return min(100, 100 * self.run.effects // max(1, self.items))


@dataclass(frozen=True)
class Comparison:
    lines: Sequence[RunLine]
    varied: str

    @property
    def is_over(self) -> bool:
        return all(line.is_over for line in self.lines)

    @property
    def results(self) -> list[Result]:
        return [line.result for line in self.lines if line.result]

    @property
    def cases(self) -> list[Case]:
        """Finished runs with their plans."""
        return [Case(Plan.from_dict(line.run.plan), line.result) for line in self.lines if line.result]

    @cached_property
    def conclusion(self) -> list[str]:
        """The conclusions, once all runs are over."""
        if not self.is_over:
            return []
        return list(self.sweep.told) if self.sweep else [] if self.varied else conclusions.drawn(self.cases)

    @cached_property
    def sweep(self) -> charts.Sweep | None:
        return charts.draw_sweep(self.cases, self.varied) if self.varied else None

    @cached_property
    def bars(self) -> charts.Bars | None:
        """The chart of a comparison; a sweep has curves instead."""
        return (
            None if self.varied else charts.draw_bars(self.cases, [line.result for line in self.fitting if line.result])
        )

    @property
    def fitting(self) -> list[RunLine]:
        return [line for line in self.lines if line.fits]

    @property
    def server(self) -> str:
        """The server of the measurements, if all runs had the same."""
        servers = {line.run.server for line in self.lines}
        return servers.pop() if len(servers) == 1 else ""

    @property
    def load(self) -> str:
        """The load in few words, without the varied number; empty if the runs differ otherwise."""
        loads = {words_of(Plan.from_dict(line.run.plan), without=self.varied) for line in self.lines if line.result}
        return loads.pop() if len(loads) == 1 else ""


def comparison_of(runs: Sequence[LabRun]) -> Comparison:
    """Put runs side by side, with the varied number; under one load the best of each column is marked."""
    results = {run.pk: stored_result(run.result) for run in runs}
    varied = what_varies(runs)
    is_one_load = len({words_of(Plan.from_dict(run.plan)) for run in runs}) < 2
    best = winners([result for result in results.values() if result]) if is_one_load else {}
    fitting = fastest(runs, results) if is_one_load else set()
    return Comparison(
        [
            RunLine(
                run,
                results[run.pk],
                f"{varied}={run.plan[varied]}" if varied else "",
                frozenset(name for name, value in best.items() if is_best(results[run.pk], name, value)),
                fits=run.pk in fitting,
            )
            for run in runs
        ],
        varied,
    )


def fastest(runs: Sequence[LabRun], results: Mapping[int, Result | None]) -> set[int]:
    """The fastest clean run of all, and of each kind of rows, among at least two."""
    by_subject: dict[str, list[tuple[float, int]]] = {}
    for run in runs:
        result = results[run.pk]
        if result and result.is_clean and run.pattern in PATTERNS:
            for kind in ("", PATTERNS[run.pattern].subject):
                by_subject.setdefault(kind, []).append((result.items_per_second, run.pk))
    return {max(ranked)[1] for ranked in by_subject.values() if len(ranked) > 1}


def words_of(plan: Plan, without: str = "") -> str:
    """The load in few words, such as "8 workers, 200 items, 5 ms of work, 3 kills"; zeros are left out."""
    told = {
        "workers": ngettext("%(n)d worker", "%(n)d workers", plan.workers),
        "items": ngettext("%(n)d item", "%(n)d items", plan.items),
        "work_ms": _("%(n)d ms of work"),
        "remote_ms": _("a call of %(n)d ms") if plan.remote_ms else "",
        "outside_lockers": ngettext("%(n)d outside locker", "%(n)d outside lockers", plan.outside_lockers)
        if plan.outside_lockers
        else "",
        "kill": ngettext("%(n)d kill", "%(n)d kills", plan.kill) if plan.kill else "",
    }
    return ", ".join(text % {"n": getattr(plan, name)} for name, text in told.items() if text and name != without)


def stored_result(values: dict[str, Any] | None) -> Result | None:
    """The stored numbers; fields that a later version added are 0."""
    if values is None:
        return None
    known: dict[str, Any] = {field.name: values.get(field.name, 0) for field in fields(Result)}
    return Result(**known)


def what_varies(runs: Sequence[LabRun]) -> str:
    """The one number that differs between runs of one pattern; empty if none or several do."""
    differing = {
        name
        for pattern in {run.pattern for run in runs}
        for name in VARIED
        if len({run.plan[name] for run in runs if run.pattern == pattern}) > 1
    }
    return differing.pop() if len(differing) == 1 else ""


def winners(results: Sequence[Result]) -> dict[str, float]:
    """The best value of each column in which the clean runs differ."""
    clean = [result for result in results if result.is_clean]
    columns = {name: {getattr(result, name) for result in clean} for name in ("items_per_second", *FEWER)}
    return {name: min(values) if name in FEWER else max(values) for name, values in columns.items() if len(values) > 1}


def is_best(result: Result | None, name: str, value: float) -> bool:
    return result is not None and result.is_clean and getattr(result, name) == value


HEADINGS = (
    "pattern", "items/s", "duplicates", "lost updates", "lost work", "lost races", "wait p95", "queries/item",
    "verdict",
)  # fmt: skip


def rows(board: Comparison) -> list[dict[str, Any]]:
    """The numbers of the runs, with their plans."""
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
    table = [HEADINGS, ("---", *["---:"] * (len(HEADINGS) - 2), "---")]
    table += [_cells(line, line.result) for line in board.lines if line.result]
    said = ", ".join(filter(None, (board.load, board.server)))
    parts = [
        f"**Rowlock lab** {said}".rstrip(),
        "\n".join(f"| {' | '.join(cells)} |" for cells in table),
        "\n".join(f"- {sentence}" for sentence in board.conclusion),
        "\n".join(["```", *(line.command for line in board.lines if line.result), "```"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _cells(line: RunLine, result: Result) -> tuple[str, ...]:
    return (
        f"`{result.pattern}` {line.varied}".rstrip(),
        f"{result.items_per_second:.0f}",
        str(result.duplicates),
        str(result.lost_updates),
        str(result.lost_work),
        str(result.lost_races),
        f"{result.wait_ms_p95:.1f} ms",
        f"{result.queries_per_item:.2f}",
        verdict(line, result),
    )


def verdict(line: RunLine, result: Result) -> str:
    """One word or two, for readers who see only the table."""
    if result.stopped:
        return f"ended: {result.stopped}"
    if not result.is_clean:
        return "**UNSAFE**"
    return "fits this load" if line.fits else "clean"
