"""What was measured, kept as JSON and as Markdown: a run replaces the parts that it measured, the others stay."""

import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.peers import environment
from tests.benchmarks.peers.environment import HERE, Unfit
from tests.databases import ROOT

FOLDER = ROOT / "docs"
INTRODUCTION = """# Benchmarks

Written by `make bench`; `make bench ARGS="drain --rounds 5"` measures parts again and leaves the others as they were.
What is compared was alternated in one run, on one server that syncs to disk (fsync and synchronous_commit on) and
whose WAL files are in use again, as of any that has been at work (making new ones took a third of the rate of whoever
writes most), beside its clients on the same machine, with ANALYZE after each fill. So compare **ratios within one
table**: on a machine that others use too, rounds differ by a third, and differences under a quarter mean nothing. The
same figures, with those of each round, are in [benchmarks.json](benchmarks.json).
"""

Cell = str | float | int | None


@dataclass
class Table:
    """Rows of cells under `columns`; `notes` stand below it."""

    title: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Part:
    """All tables of one part, and every single figure they were made of."""

    name: str
    title: str
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    server: str = ""


def rates(title: str, unit: str, figures: Mapping[str, Sequence[float]], ours: str = "Rowlock") -> Table:
    """Medians with their spread, the fastest first; the last column is how many times as fast ours is."""
    table = Table(title, [unit, "median", "least", "most", f"{ours} / this"])
    middle = {name: statistics.median(values) for name, values in figures.items() if values}
    for name in sorted(middle, key=lambda name: -middle[name]):
        ratio = middle[ours] / middle[name] if ours in middle and middle[name] else None
        table.rows.append([name, middle[name], min(figures[name]), max(figures[name]), ratio])
    return table


def waits(title: str, figures: Mapping[str, Sequence[float]], columns: Sequence[str] = ()) -> Table:
    """p50, p99 and the maximum in milliseconds of values in seconds; the quickest first."""
    table = Table(title, ["milliseconds", "n", "p50", "p99", "max", *columns])
    for name, values in sorted(figures.items(), key=lambda item: percentile(item[1], 0.5)):
        cells = [percentile(values, 0.5), percentile(values, 0.99), max(values)]
        table.rows.append([name, len(values), *(round(1000 * cell, 2) for cell in cells)])
    return table


def summaries(figures: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """What is kept of many values in seconds: some percentiles in milliseconds."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        name: {"n": len(values), **{key: round(1000 * percentile(values, share), 3) for key, share in shares.items()}}
        for name, values in figures.items()
        if values
    }


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def keep(folder: Path, part: Part, surroundings: Mapping[str, Any], order: Sequence[str]) -> None:
    """Put this part into `benchmarks.json` and `benchmarks.md` of the folder, where `order` has its name."""
    path = folder / "benchmarks.json"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    kept[part.name] = {**asdict(part), **surroundings}
    kept = {name: kept[name] for name in order if name in kept}
    path.write_text(json.dumps(kept, indent=1) + "\n")
    (folder / "benchmarks.md").write_text(markdown(kept))


def markdown(kept: Mapping[str, Any]) -> str:
    return "\n".join([INTRODUCTION, *(section(part) for part in kept.values())])


def section(part: Mapping[str, Any]) -> str:
    lines = [f"## {part['title']}", ""]
    for note in part["notes"]:
        lines += [note, ""]
    for found in part["tables"]:
        lines += [
            f"**{found['title']}**",
            "",
            line(found["columns"]),
            line(["---"] + ["--:"] * (len(found["columns"]) - 1)),
        ]
        lines += [line([shown(cell) for cell in row]) for row in found["rows"]]
        lines += ["", *(f"{note}\n" for note in found["notes"])]
    if part["text"]:
        lines += ["```", part["text"].strip(), "```", ""]
    lines += [f"<sub>{part['date']} · {part['machine']} · {part['versions']} · `{part['command']}`</sub>", ""]
    return "\n".join(lines)


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def shown(cell: Cell) -> str:
    """As a person reads it.

    >>> shown(12345.6), shown(3.14159), shown(0.01234), shown(None), shown("x")
    ('12,346', '3.14', '0.012', '-', 'x')
    """
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.2f}" if abs(cell) >= 1 or not cell else f"{cell:.2g}"


def surroundings(server: str, command: str) -> dict[str, str]:
    """When, where and with which versions."""
    now = datetime.datetime.now(datetime.UTC)
    memory = psutil.virtual_memory().total / 2**30
    cpu = f"{os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB, load average {os.getloadavg()[1]:.1f}"
    names = [server, f"Python {platform.python_version()}", f"Rowlock {revision()}"]
    versions = ", ".join(name for name in names if name)
    return {"date": f"{now:%Y-%m-%d %H:%M} UTC", "machine": cpu, "versions": versions, "command": command}


def revision() -> str:
    """The commit that was measured; with a + where files had changed."""
    told = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True)
    return told.stdout.strip() or "of no commit"


def version_of(package: str) -> str:
    """What was measured of a peer, or nothing."""
    found: dict[str, str] = environment.versions()
    if package not in found:
        found = json.loads((HERE / "package.json").read_text())["dependencies"]
    return found.get(package, "")


def left_out(name: str, reason: Unfit) -> str:
    return f"**{name} is left out**: {reason}."
