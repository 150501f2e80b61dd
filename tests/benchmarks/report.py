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

For whoever compares Rowlock with other queues. `make bench` measures everything; `make bench ARGS="drain --rounds 5"`
measures one part again and keeps the others. Rivals alternate in one run, on one PostgreSQL that syncs to disk, on the
same machine as their clients. So compare **ratios within a row**: rounds differ by a third on a shared machine, and
differences below a quarter mean nothing.

The next best is the fastest rival that does the same work; statements on bare rows are left out. Every table, round and
version is in [measurements/benchmarks.txt](measurements/benchmarks.txt) and `measurements/benchmarks.json`.
`python -m tests.benchmarks.public --help` says how to run Rowlock in a public benchmark that others wrote. PgQue is a
log of events, without a row for each job. What a killed worker had done since its last report counts as lost there; no
job was left or failed.
"""
LOG_INTRODUCTION = """Every table of `make bench`, part by part. Compare ratios within one table.
"""
OURS = "Rowlock"
# They move bare rows and are no queue.
SPREAD = ("least", "most")  # of the rounds, in the log alone
LONGEST_TEXT = 600  # characters of a printed report that the page shows whole
FLOORS = ("pgbench", "Python on bare rows", "plain ")

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
    """Put this part into the folder's measurements, where `order` has its name, and write the page anew."""
    path = folder / "measurements" / "benchmarks.json"
    path.parent.mkdir(exist_ok=True)
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    kept[part.name] = {**asdict(part), **surroundings}
    kept = {name: kept[name] for name in order if name in kept}
    path.write_text(json.dumps(kept, indent=1) + "\n")
    write(folder, kept)


def write(folder: Path, kept: Mapping[str, Any]) -> None:
    """Write the page and the log from the kept parts alone."""
    (folder / "measurements" / "benchmarks.txt").write_text(
        "\n".join([LOG_INTRODUCTION, *(section(part) for part in kept.values())])
    )
    (folder / "benchmarks.md").write_text("\n".join([INTRODUCTION, *(comparison(part) for part in kept.values())]))


def comparison(part: Mapping[str, Any]) -> str:
    """The section of one part: each table in one line, where it has a line of ours beside rivals."""
    lines = [f"## {part['title']}", ""]
    rows = [cells for table in part["tables"] if (cells := compared(table))]
    if rows:
        lines += [line(["", OURS, "next best", "ratio"]), "|---|--:|---|--:|", *map(line, rows)]
    elif part["tables"]:
        lines += grid(part["tables"][0], leave_out=SPREAD)
    elif len(part["text"]) <= LONGEST_TEXT:
        lines += ["```", part["text"].strip(), "```"]
    else:
        lines += [f"`{part['command']}` prints the figures; the log has them."]
    revision = part["versions"].rpartition("Rowlock ")[2]
    return "\n".join([*lines, "", f"<sub>{part['date'][:10]}, {revision}</sub>", ""])


def compared(table: Mapping[str, Any]) -> list[str] | None:
    """Our line of a table beside the next best: the most tasks a second, or the least milliseconds (p50 / p99)."""
    if table["columns"][1:2] == ["median"] and table["columns"][-1].endswith("/ this"):
        figures = {row[0]: (shown(row[1]), row[1]) for row in table["rows"]}
    elif table["columns"][1:4] == ["n", "p50", "p99"]:
        figures = {row[0]: (f"{shown(row[2])} / {shown(row[3])} ms", -row[2]) for row in table["rows"]}
    else:
        return None
    ours = OURS if OURS in figures else next((name for name in figures if name.startswith(OURS)), None)
    rivals = {name: found for name, found in figures.items() if not name.startswith((OURS, *FLOORS))}
    if ours is None or not rivals:
        return None
    best = max(rivals, key=lambda name: rivals[name][1])
    ratio = figures[ours][1] / rivals[best][1]
    return [table["title"], figures[ours][0], f"{best} {rivals[best][0]}", f"{ratio:.2f}"]


def section(part: Mapping[str, Any]) -> str:
    lines = [f"## {part['title']}", ""]
    for note in part["notes"]:
        lines += [note, ""]
    for found in part["tables"]:
        lines += [f"**{found['title']}**", "", *grid(found)]
        lines += ["", *(f"{note}\n" for note in found["notes"])]
    if part["text"]:
        lines += ["```", part["text"].strip(), "```", ""]
    lines += [f"<sub>{part['date']} · {part['machine']} · {part['versions']} · `{part['command']}`</sub>", ""]
    return "\n".join(lines)


def grid(table: Mapping[str, Any], *, leave_out: Sequence[str] = ()) -> list[str]:
    """The lines of a table; some columns may be left out."""
    shows = [number for number, name in enumerate(table["columns"]) if name not in leave_out]
    lines = [line([table["columns"][number] for number in shows]), "|---" + "|--:" * (len(shows) - 1) + "|"]
    return [*lines, *(line([shown(row[number]) for number in shows]) for row in table["rows"])]


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
