"""Tasks a second of handlers that write: one UPDATE, and one INSERT with one UPDATE, each committed by itself.

Every queue runs with what serves it best: many at once in a process where it can. `python -m tests.benchmarks.database
[--tasks TASKS] [--rounds ROUNDS]` measures Rowlock alone, and keeps no report.
"""

import itertools
import sys
from collections.abc import Callable
from functools import partial

from tests.benchmarks import alone
from tests.benchmarks.bench import Bench
from tests.benchmarks.drain import drained, notes
from tests.benchmarks.floors import Floor
from tests.benchmarks.report import Part, rates
from tests.benchmarks.subject import CELERY, PEERS, Rowlock, Subject

TASKS = 4_000
KINDS = {"update": "one UPDATE", "write": "one INSERT and one UPDATE"}
LOADS = list(itertools.product(KINDS, (1, 2)))
AT_ONCE = 24  # as Graphile Worker is recommended to run
SERIAL = ("Celery prefork", "django-tasks-db")
UNBOUND = ("PgQueuer", "pg-boss", "Graphile Worker")  # their own settings are faster than a limit
RELAXED = "Rowlock, relaxed commits"
ONE_BY_ONE = "Rowlock, one at a time"


def run(scene: Bench) -> Part:
    found = scene.subjects(peers=(*PEERS, *CELERY))
    part = scene.part("database", "Tasks that write: tasks a second")
    relaxed = Rowlock(scene.server.url, scene.pipe, RELAXED, ROWLOCK_RELAXED_COMMIT="1")
    subjects: list[Subject] = [*found, relaxed, Rowlock(scene.server.url, scene.pipe, ONE_BY_ONE)]
    for kind, workers in LOADS:
        compare(scene, part, subjects, kind, workers)
    part.notes = [
        f"Rowlock runs {AT_ONCE} threads in each process, with Django's ORM. With relaxed commits the commits of its "
        "handlers do not wait for the disk; that of their completion does.",
        *notes(scene, found, {subject.name: many(subject.name) for subject in found}),
    ]
    return part


def compare(scene: Bench, part: Part, subjects: list[Subject], kind: str, workers: int) -> None:
    """One table: all of them in turn."""
    tasks = min(scene.tasks(TASKS), TASKS)
    floor = Floor(scene.server, 1)
    measures: dict[str, Callable[[], float]] = {floor.name: partial(floor.drain, tasks, workers)}
    for subject in subjects:
        measures[subject.name] = partial(drained, subject, kind, tasks, workers, at_once(subject.name))
    label = f"tasks of {KINDS[kind]} each, {workers} process{'es'[: 2 * workers - 2]}"
    figures = scene.alternate(label, measures, scene.rounds(), "tasks/s")
    part.tables.append(rates(f"{tasks:,} {label}", "tasks a second", figures))
    part.figures[label] = figures


def at_once(name: str) -> int | None:
    """How many of its tasks run at a time in a process; None: its own choice."""
    if name in SERIAL or name == ONE_BY_ONE:
        return 1
    return None if name in UNBOUND else AT_ONCE


def many(name: str) -> str:
    """How it runs here, for the report."""
    number = at_once(name)
    return "its own settings, many at once" if number is None else f"{number} at a time in a process"


if __name__ == "__main__":
    sys.exit(alone.main("database", sys.argv[1:], ("--tasks", "--rounds")))
