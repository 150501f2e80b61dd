"""Runs as pages show them: what each came to, the best of each column, and the picture of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.functional import cached_property

from dashboard.lab import comparison, drill, records
from dashboard.lab.measure import Result
from dashboard.lab.plan import LIMITS, Plan
from dashboard.models import LabRun
from tasks.verdicts.words import command

DEFAULTS = {name: field.default for name, field in Plan.__dataclass_fields__.items()}
WIDE, HIGH = 6000, 2000
VARIED = ("workers", "work_ms", "items", "outside_lockers", "remote_ms", "kill")
# The columns in which less is better; more is better in the first alone.
FEWER = ("lost_races", "wait_ms_p95", "queries_per_item")


@dataclass(frozen=True)
class Line:
    """One run; `result` is None until it has numbers. `best`: the columns in which no clean run is better."""

    run: LabRun
    result: Result | None
    varied: str
    best: frozenset[str] = frozenset()

    @property
    def is_over(self) -> bool:
        return self.run.state not in records.UNFINISHED or self.is_orphaned

    @cached_property
    def is_orphaned(self) -> bool:
        return records.is_orphaned(self.run)

    @property
    def is_drill(self) -> bool:
        return self.run.pattern == drill.NAME

    @property
    def recovered_ms(self) -> int | None:
        """Of a drill: how long after the kill the task was running again."""
        events = (self.run.spans or []) if self.is_drill else []
        return next((event["ms"] for event in events if event["what"] == "taken"), None)

    @property
    def items(self) -> int:
        return int(self.run.plan["items"])

    @property
    def command(self) -> str:
        """The same by command, with the numbers that are not the default's."""
        asked = {name: self.run.plan[name] for name in LIMITS if self.run.plan[name] != DEFAULTS[name]}
        parts = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
        return command("run_pattern", self.run.pattern, *parts)

    @property
    def share(self) -> int:
        """How much of the way it has come, in hundredths."""
        return min(100, 100 * self.run.effects // max(1, self.items))


@dataclass(frozen=True)
class Curve:
    """The throughput of one pattern over the values of a sweep."""

    pattern: str
    number: int
    points: Sequence[tuple[int, int]]

    @property
    def path(self) -> str:
        return "M" + "L".join(f"{x} {y}" for x, y in self.points)


@dataclass(frozen=True)
class Board:
    """Some runs beside each other."""

    lines: Sequence[Line]
    varied: str

    @property
    def is_over(self) -> bool:
        return all(line.is_over for line in self.lines)

    @property
    def results(self) -> list[Result]:
        return [line.result for line in self.lines if line.result]

    @property
    def conclusion(self) -> list[str]:
        """What the numbers say, once all are there; of a sweep the picture does."""
        return [] if self.varied or not self.is_over else comparison.conclusion(self.results)

    @cached_property
    def fastest(self) -> float:
        return max((result.items_per_second for result in self.results), default=0.0)

    @property
    def values(self) -> list[int]:
        """What a sweep went through, in order."""
        return sorted({int(line.run.plan[self.varied]) for line in self.lines}) if self.varied else []

    @property
    def curves(self) -> list[Curve]:
        """The throughput over the varied number, one curve for each pattern with at least two values."""
        places = {value: round(WIDE * place / max(1, len(self.values) - 1)) for place, value in enumerate(self.values)}
        found: dict[str, list[tuple[int, int]]] = {}
        for line in self.lines:
            if line.result and self.varied:
                y = HIGH - round(HIGH * line.result.items_per_second / (self.fastest or 1))
                found.setdefault(line.run.pattern, []).append((places[int(line.run.plan[self.varied])], y))
        return [
            Curve(pattern, number, sorted(points))
            for number, (pattern, points) in enumerate(found.items())
            if len(points) > 1
        ]


def board(runs: Sequence[LabRun]) -> Board:
    """The runs, with the best of each column marked and what was varied between them."""
    results = {run.pk: read(run.result) for run in runs}
    varied = what_varies(runs)
    best = winners([result for result in results.values() if result])
    return Board(
        [
            Line(
                run,
                results[run.pk],
                f"{varied}={run.plan[varied]}" if varied else "",
                frozenset(name for name, value in best.items() if is_best(results[run.pk], name, value)),
            )
            for run in runs
        ],
        varied,
    )


def read(values: dict[str, Any] | None) -> Result | None:
    """The numbers as they were kept; a number that a later version added counts as none."""
    if values is None:
        return None
    known: dict[str, Any] = {name: values.get(name, 0) for name in Result.__dataclass_fields__}
    return Result(**known)


def what_varies(runs: Sequence[LabRun]) -> str:
    """The one number of the plans that differs between runs of one pattern; empty for none, or for several."""
    differing = {
        name
        for pattern in {run.pattern for run in runs}
        for name in VARIED
        if len({run.plan[name] for run in runs if run.pattern == pattern}) > 1
    }
    return differing.pop() if len(differing) == 1 else ""


def winners(results: Sequence[Result]) -> dict[str, float]:
    """The best value of each column among the clean runs."""
    clean = [result for result in results if result.is_clean]
    if len(clean) < 2:
        return {}
    fewest = {name: min(getattr(result, name) for result in clean) for name in FEWER}
    return {"items_per_second": max(result.items_per_second for result in clean), **fewest}


def is_best(result: Result | None, name: str, value: float) -> bool:
    return result is not None and result.is_clean and getattr(result, name) == value
