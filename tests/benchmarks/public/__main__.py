"""Rowlock in the public benchmark hardbyte/postgresql-job-queue-benchmarking, on a PostgreSQL of this machine.

git clone --recurse-submodules https://github.com/hardbyte/postgresql-job-queue-benchmarking DIR
python -m tests.benchmarks.public --harness DIR [--phases clean,half] [--systems rowlock,pgboss] [--rounds 5]

Each cell is one run of the harness, whose files stay in the folder of `--out`. The table shows every cell in it. With
rounds the systems run in turns, so that a noisy minute of the machine shows in all of them.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dashboard.processes import bound
from tests.benchmarks import report
from tests.benchmarks.__main__ import KEPT
from tests.benchmarks.peers import environment
from tests.benchmarks.public import cells
from tests.benchmarks.public.cells import CELLS, Cell
from tests.benchmarks.public.server import container
from tests.benchmarks.report import Part, Table
from tests.databases import ROOT

SYSTEMS = {
    "rowlock": "Rowlock",
    "pgboss": "pg-boss",
    "procrastinate": "Procrastinate",
    "absurd": "Absurd",
    "pgque": "PgQue",
}
# Each adapter paces its own producer: the harness's pace on stdin would block it where nobody reads.
FAIR = {"PRODUCER_PACING": "adapter", "PRODUCER_BATCH_MAX": "128", "PRODUCER_BATCH_MS": "10"}
ONLY = {"mixed-queues": ("rowlock",)}  # the others' adapters have one queue

ESTIMATE = (
    "Jobs lost are the harness's own estimate from samples: the adapter of Rowlock says on stderr how many it left "
    "unfinished and failed."
)
NO_JOBS = "PgQue is a log of events: it ends whole batches, and no row tells how a single job went."


def main(words: Sequence[str]) -> None:
    given = parser().parse_args(words)
    chosen = [(name, system) for name in given.phases for system in given.systems if system in ONLY.get(name, SYSTEMS)]
    with container(given.harness) as variables:
        for number in range(given.rounds):
            for name, system in chosen:
                before = told(given.out / name / system).get("rounds", []) if number else []
                failure = run(CELLS[name], name, system, given, variables, before)
                print(f"{name:<18} {system:<14} {shown(given.out / name / system)}{failure}", flush=True)
    tables = [table(given.out), *rounds(given.out)]
    part = Part("public", "The public benchmark: others' harness, jobs of 1 ms", tables=tables)
    part.notes = [versions(given.harness), ESTIMATE, NO_JOBS]
    part.figures = {str(path.parent.relative_to(given.out)): json.loads(path.read_text()) for path in kept(given.out)}
    surroundings = report.surroundings(
        "PostgreSQL 18", f"python -m tests.benchmarks.public --seconds {given.seconds} --rounds {given.rounds}"
    )
    print(report.section({**vars(part), "tables": [vars(found) for found in part.tables], **surroundings}))
    if given.report:
        report.keep(given.report, part, surroundings, KEPT)


def run(
    cell: Cell, name: str, system: str, given: argparse.Namespace, variables: dict[str, str], before: list[str]
) -> str:
    """Run one cell and keep its files, with `cell.json` beside them. Returns what went wrong, if anything.

    Args:
        before: the results of the rounds before this one.
    """
    folder = given.out / name / system
    half = 0
    if cell.rate is None:
        half = round(cells.metric(summary(given.out / cells.PEAK / system), "clean", "completion_rate") / 2)
        if not half:
            return " (half of what? Run `clean` first)"
    node, packages = environment.node_for(given.harness / "pgboss-bench")
    own = {"ROWLOCK_PYTHON": sys.executable, "NODE": str(node), "NODE_PATH": str(packages)}
    present = set(results(given.harness))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "log").open("wb") as log:
        words = [str(environment.python()), str(Path(__file__).with_name("drive.py")), str(given.harness), "run"]
        words += ["--systems", system, *cell.words(given.seconds, given.idle_seconds, half)]
        done = subprocess.run(
            bound(words, at_parents_death=signal.SIGINT),
            env={**os.environ, **variables, **own, **FAIR, **cell.extra}, stdout=log, stderr=log,
        )  # fmt: skip
    for made in set(results(given.harness)) - present:
        shutil.copytree(made, folder, dirs_exist_ok=True)
        shutil.rmtree(made)
    kept = {"status": done.returncode, "seconds": given.seconds, "load": round(os.getloadavg()[1], 1)}
    kept["revision"] = report.revision()
    says = cell.says(summary(folder))
    if given.rounds > 1:
        kept["rounds"] = [*before, "lost" if done.returncode else says]
    (folder / "cell.json").write_text(json.dumps({**kept, "says": says}, indent=1))
    return f" (ended with {done.returncode}: {folder / 'log'})" if done.returncode else ""


def versions(harness: Path) -> str:
    """The harness's commit and what it measured."""
    told = subprocess.run(["git", "-C", harness, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    installed = environment.versions()
    pgboss = json.loads((harness / "pgboss-bench" / "package.json").read_text())["dependencies"]["pg-boss"]
    return (
        f"Harness {told.stdout.strip() or 'of no commit'}, pg-boss {pgboss}, "
        f"Procrastinate {installed.get('procrastinate')}, Absurd {installed.get('absurd-sdk')}."
    )


def results(harness: Path) -> list[Path]:
    return list((harness / "results").glob("custom-*"))


def summary(folder: Path) -> dict[str, Any]:
    """The harness's figures of the only system; none where it gave up."""
    path = folder / "summary.json"
    systems = json.loads(path.read_text())["systems"] if path.exists() else {}
    return next(iter(systems.values()), {"phases": {}})


def kept(out: Path) -> list[Path]:
    return [path for name in CELLS for system in SYSTEMS if (path := out / name / system / "cell.json").exists()]


def told(folder: Path) -> dict[str, Any]:
    path = folder / "cell.json"
    return json.loads(path.read_text()) if path.exists() else {}


def shown(folder: Path) -> str:
    found = told(folder)
    return "lost" if found.get("status") else found.get("says", "")


def table(out: Path) -> Table:
    present = [name for name in SYSTEMS if any(path.parent.name == name for path in kept(out))]
    rows = [
        [titled(cell, out / name / "rowlock"), *(shown(out / name / system) for system in present)]
        for name, cell in CELLS.items()
        if (out / name).exists()
    ]
    return Table("Cells", ["", *(SYSTEMS[name] for name in present)], rows)


def titled(cell: Cell, folder: Path) -> str:
    """The cell's title, with the commit of Rowlock that ran it if that is not this one."""
    revision = told(folder).get("revision", now := report.revision())
    return cell.title if revision == now else f"{cell.title} ({revision})"


def rounds(out: Path) -> list[Table]:
    """A table of each cell that ran in rounds."""
    tables = []
    for name, cell in CELLS.items():
        found = {system: made for system in SYSTEMS if (made := told(out / name / system).get("rounds"))}
        if found:
            rows = [[str(number), *row] for number, row in enumerate(zip_longest(*found.values(), fillvalue=""), 1)]
            tables.append(Table(f"{cell.title}, in turns", ["round", *(SYSTEMS[system] for system in found)], rows))
    return tables


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.public",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--harness", type=Path, required=True, metavar="DIR", help="a checkout of the public benchmark")
    found.add_argument("--phases", type=names(CELLS), default=list(CELLS), help=f"of {', '.join(CELLS)}; default: all")
    found.add_argument("--systems", type=names(SYSTEMS), default=list(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    found.add_argument("--seconds", type=float, default=60, help="the length of one phase; default: the harness's 60")
    found.add_argument("--rounds", type=int, default=1, help="run everything so many times; default: 1")
    found.add_argument("--idle-seconds", type=float, default=0, help="how long a transaction stays idle; 0: two phases")
    found.add_argument("--out", type=Path, default=ROOT / "var" / "public", help="the folder of the harness's files")
    found.add_argument("--report", type=Path, help="put the table into this folder's benchmarks.md, for example docs")
    return found


def names(known: dict[str, Any]) -> Any:
    def parsed(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
        return text.split(",")

    return parsed


if __name__ == "__main__":
    main(sys.argv[1:])
