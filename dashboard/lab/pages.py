"""Runs for the pages: results, the best of each column, and exports."""

import csv
import io
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any

from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.lab import charts, conclusions, drill, requests
from dashboard.lab.conclusions import Case
from dashboard.lab.measure import Result
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.worker import LIMITS, VARIED, Plan
from dashboard.models import LabRun
from tasks.diagnosis.finding import command

DEFAULTS = {field.name: field.default for field in fields(Plan)}
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
    def plan(self) -> Plan:
        return Plan(**self.run.plan)

    @property
    def events(self) -> list[drill.Event]:
        """Events of a drill; empty for other runs."""
        return [drill.Event(**event) for event in self.run.spans or []] if self.run.pattern == drill.NAME else []

    @property
    def recovered_ms(self) -> int | None:
        """For a drill: milliseconds from the kill until the task ran again."""
        return drill.recovered_ms(self.events)

    @property
    def load(self) -> str:
        """The load in few words; empty for a drill."""
        return "" if self.run.pattern == drill.NAME else words_of(self.plan)

    @property
    def command(self) -> str:
        """The command that repeats this run."""
        return command(drill.NAME) if self.run.pattern == drill.NAME else command_of(self.run.pattern, self.run.plan)


@dataclass(frozen=True)
class Comparison:
    lines: Sequence[RunLine]
    varied: str

    @property
    def is_over(self) -> bool:
        return all(line.is_over for line in self.lines)

    @property
    def cases(self) -> list[Case]:
        """Finished runs with their plans."""
        return [Case(line.plan, line.result) for line in self.lines if line.result]

    @cached_property
    def conclusion(self) -> list[str]:
        """The conclusions, once all runs are over."""
        if not self.is_over:
            return []
        if self.varied:
            return self.sweep.conclusion if self.sweep else []
        return conclusions.drawn(self.cases)

    @cached_property
    def sweep(self) -> charts.Sweep | None:
        return charts.draw_sweep(self.cases, self.varied) if self.varied else None

    @cached_property
    def bars(self) -> charts.Bars | None:
        """The chart of a comparison; a sweep has curves instead."""
        best = [line.result for line in self.lines if line.fits and line.result]
        return None if self.varied else charts.draw_bars(self.cases, best)

    @property
    def server(self) -> str:
        """The server of the measurements, if all runs had the same."""
        return the_only({line.run.server for line in self.lines})

    @property
    def load(self) -> str:
        """The load in few words, without the varied number; empty if the runs differ otherwise."""
        return the_only({words_of(case.plan, without=self.varied) for case in self.cases})


def the_only(texts: Set[str]) -> str:
    """The one text of the set; empty if there are none or several."""
    return next(iter(texts)) if len(texts) == 1 else ""


def comparison_of(runs: Sequence[LabRun]) -> Comparison:
    """Put runs side by side, with the varied number; under one load the best of each column is marked."""
    results = {run.pk: Result.from_dict(run.result) if run.result is not None else None for run in runs}
    varied = what_varies(runs)
    is_one_load = len({words_of(Plan(**run.plan)) for run in runs}) < 2
    clean = {pk: result for pk, result in results.items() if is_one_load and result and result.is_clean}
    best, fitting = winners(list(clean.values())), fastest(clean)
    lines = [
        RunLine(
            run,
            results[run.pk],
            f"{varied}={run.plan[varied]}" if varied else "",
            frozenset(name for name, value in best.items() if getattr(clean.get(run.pk), name, None) == value),
            fits=run.pk in fitting,
        )
        for run in runs
    ]
    return Comparison(lines, varied)


def fastest(clean: Mapping[int, Result]) -> set[int]:
    """The fastest run of all, and of each kind of rows, among at least two."""
    by_subject: dict[str, list[tuple[float, int]]] = {}
    for pk, result in clean.items():
        if result.pattern in PATTERNS:
            for kind in ("", PATTERNS[result.pattern].subject):
                by_subject.setdefault(kind, []).append((result.items_per_second, pk))
    return {max(ranked)[1] for ranked in by_subject.values() if len(ranked) > 1}


def winners(clean: Sequence[Result]) -> dict[str, float]:
    """The best value of each column in which the runs differ."""
    columns = {name: {getattr(result, name) for result in clean} for name in ("items_per_second", *FEWER)}
    return {name: min(values) if name in FEWER else max(values) for name, values in columns.items() if len(values) > 1}


def what_varies(runs: Sequence[LabRun]) -> str:
    """The one number that differs between runs of one pattern; empty if none or several do."""
    by_pattern: dict[str, list[LabRun]] = {}
    for run in runs:
        by_pattern.setdefault(run.pattern, []).append(run)
    return the_only(
        {name for group in by_pattern.values() for name in VARIED if len({run.plan[name] for run in group}) > 1}
    )


def words_of(plan: Plan, without: str = "") -> str:
    """The load in few words, such as "8 workers, 200 items, 5 ms of work, 3 kills"; zeros are left out."""
    texts = {
        "workers": ngettext("%(n)d worker", "%(n)d workers", plan.workers),
        "items": ngettext("%(n)d item", "%(n)d items", plan.items),
        "work_ms": _("%(n)d ms of work"),
        "remote_ms": _("a call of %(n)d ms"),
        "outside_lockers": ngettext("%(n)d outside locker", "%(n)d outside lockers", plan.outside_lockers),
        "kill": ngettext("%(n)d kill", "%(n)d kills", plan.kill),
    }
    numbers = {name: getattr(plan, name) for name in texts if name != without}
    return ", ".join(texts[name] % {"n": n} for name, n in numbers.items() if n or name == "work_ms")


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
    done = [line for line in board.lines if line.result]
    table = [
        conclusions.HEADINGS,
        ("---", *["---:"] * (len(conclusions.HEADINGS) - 2), "---"),
        *(
            conclusions.cells(f"`{line.run.pattern}` {line.varied}".rstrip(), line.result, fits=line.fits)
            for line in done
            if line.result
        ),
    ]
    parts = [
        f"**Rowlock lab** {', '.join(filter(None, (board.load, board.server)))}".rstrip(),
        "\n".join(f"| {' | '.join(row)} |" for row in table),
        "\n".join(f"- {sentence}" for sentence in board.conclusion),
        "\n".join(["```", *(line.command for line in done), "```"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"
