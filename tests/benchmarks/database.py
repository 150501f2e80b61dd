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

TASKS = 8_000
KINDS = {"update": "one UPDATE", "write": "one INSERT and one UPDATE"}
LOADS = list(itertools.product(KINDS, (1, 2)))
AT_ONCE = 24  # as Graphile Worker is recommended to run
SERIAL = ("Celery prefork", "django-tasks-db")
UNBOUND = ("PgQueuer", "pg-boss", "Graphile Worker")  # their own settings are faster than a limit
OURS = "Rowlock"
RELAXED, ONE_BY_ONE = f"{OURS}, relaxed commits", f"{OURS}, one at a time"
# Most of what a task costs through the ORM is the ORM, and no peer has one; so both are measured.
BY = {"through Django's ORM": "", "as plain SQL": "plain_"}


def run(scene: Bench) -> Part:
    found = scene.subjects(peers=(*PEERS, *CELERY))
    part = scene.part("database", "Tasks that write: tasks a second")
    found, peers = found[:1], found[1:]
    ours = [subject for by, handlers in BY.items() for subject in variants(scene, by, handlers)]
    subjects: list[Subject] = [*peers, *ours]
    for kind, workers in LOADS:
        compare(scene, part, subjects, kind, workers)
    part.notes = [
        f"Rowlock runs {AT_ONCE} threads in each process. With relaxed commits the commits of its handlers do not wait "
        "for the disk; that of their completion does. The peers' handlers write plain SQL.",
        "Where the time goes, by a profile of one process: an UPDATE through the ORM takes 280 to 330 µs of the "
        "processor, 70 to 90 as plain SQL, and Python runs one thread at a time; so a process makes 3,000 a second "
        "through the ORM at most, whoever runs it. Claim and completion take 8 µs a task, threads and runner about 30. "
        "A shorter switch interval and fewer threads (4, 8) were tried and brought nothing.",
        *notes(scene, [*found, *peers], {subject.name: many(subject.name) for subject in [*found, *peers]}),
    ]
    return part


def variants(scene: Bench, by: str, handlers: str) -> list[Rowlock]:
    """Rowlock with handlers that write in this way."""
    make = partial(Rowlock, scene.server.url, scene.pipe, handlers=handlers)
    return [
        make(f"{OURS} {by}"),
        make(f"{RELAXED} {by}", ROWLOCK_RELAXED_COMMIT="1"),
        make(f"{ONE_BY_ONE} {by}"),
        make(f"{ONE_BY_ONE}, relaxed commits {by}", ROWLOCK_RELAXED_COMMIT="1"),
    ]


def compare(scene: Bench, part: Part, subjects: list[Subject], kind: str, workers: int) -> None:
    """All of them in turn, and a table for each way in which ours write."""
    tasks = min(scene.tasks(TASKS), TASKS)
    floor = Floor(scene.server, 1)
    measures: dict[str, Callable[[], float]] = {floor.name: partial(floor.drain, tasks, workers)}
    for subject in subjects:
        measures[subject.name] = partial(drained, subject, kind, tasks, workers, at_once(subject.name))
    label = f"tasks of {KINDS[kind]} each, {workers} process{'es'[: 2 * workers - 2]}"
    figures = scene.alternate(label, measures, scene.rounds(), "tasks/s")
    for by in BY:
        others = [f" {other}" for other in BY if other != by]
        shown = {name.removesuffix(f" {by}"): figures[name] for name in figures if not name.endswith(tuple(others))}
        part.tables.append(rates(f"{tasks:,} {label}, ours {by}", "tasks a second", shown))
    part.figures[label] = figures


def at_once(name: str) -> int | None:
    """How many of its tasks run at a time in a process; None: its own choice."""
    if name in SERIAL or name.startswith(ONE_BY_ONE):
        return 1
    return None if name in UNBOUND else AT_ONCE


def many(name: str) -> str:
    """How it runs here, for the report."""
    number = at_once(name)
    return "its own settings, many at once" if number is None else f"{number} at a time in a process"


if __name__ == "__main__":
    sys.exit(alone.main("database", sys.argv[1:], ("--tasks", "--rounds")))
