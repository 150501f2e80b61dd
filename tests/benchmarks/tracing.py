"""The cost of traces for tasks of one UPDATE each: without the extra `otel`, with it, and with spans that nobody gets.

`python -m tests.benchmarks.tracing [TASKS [ROUNDS]]` measures it, and keeps no report. The processor's time of the
runner alone bears a busy machine; the rate of a whole worker does not.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.benchmarks import alone
from tests.benchmarks.bench import Bench
from tests.benchmarks.drain import drained
from tests.benchmarks.report import Part, Table, percentile, rates
from tests.benchmarks.subject import HANDLERS, Rowlock
from tests.databases import ROOT

TASKS = 8_000
TRACERS = Path(__file__).parent / "tracers"
VARIANTS = {
    "Rowlock": {"PYTHONPATH": str(TRACERS / "none")},
    "Rowlock, extra otel": {},
    "Rowlock, SDK without an exporter": {"PYTHONPATH": str(TRACERS / "sdk")},
}


def run(scene: Bench) -> Part:
    scene.subjects(peers=())
    part = scene.part("tracing", "Traces: tasks of one UPDATE each, with and without them")
    tasks = min(scene.tasks(TASKS), TASKS)
    rate: dict[str, Callable[[], float]] = {}
    spent: dict[str, Callable[[], float]] = {}
    for name, variables in VARIANTS.items():
        subject = Rowlock(scene.server.url, scene.pipe, name, handlers="plain_", **variables)
        rate[name] = partial(drained, subject, "update", tasks, 1, 1)
        spent[name] = partial(microseconds, subject.url, tasks, variables)
    rates_ = scene.alternate("tasks of one UPDATE each", rate, scene.rounds(), "tasks/s")
    part.tables.append(rates(f"{tasks:,} tasks of one UPDATE each, 1 process", "tasks a second", rates_))
    costs = scene.alternate("the runner's time for a task", spent, scene.rounds(), "microseconds")
    table = Table("the runner and its handler", ["microseconds of the processor", "median", "least", "most"])
    for name, values in costs.items():
        table.rows.append([name, *(round(value, 1) for value in (percentile(values, 0.5), min(values), max(values)))])
    part.tables.append(table)
    part.figures = {"rates": rates_, "microseconds": costs}
    return part


def microseconds(url: str, tasks: int, variables: dict[str, str]) -> float:
    """The processor's time for a task in a process of its own."""
    environment = {
        **os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings", "ROWLOCK_APPS": HANDLERS,
        **variables,
    }  # fmt: skip
    argv = [sys.executable, "-m", "tests.benchmarks.tracers.runner", str(tasks)]
    ran = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return float(ran.stdout)


if __name__ == "__main__":
    sys.exit(alone.main("tracing", sys.argv[1:], ("--tasks", "--rounds")))
