"""Tasks a second of workers that find a full queue of tasks that do nothing.

Handlers count themselves, alike for everybody; the rate is that of the time in which all workers were at work. Beside
it stand the floors of the database. `python -m tests.benchmarks.drain [TASKS [ROUNDS]]` measures Rowlock and two floors
alone, and keeps no report.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial

from tests.benchmarks import alone
from tests.benchmarks.bare import PythonFloor
from tests.benchmarks.bench import Bench
from tests.benchmarks.floors import Floor
from tests.benchmarks.pipe import Counts
from tests.benchmarks.report import Part, rates, version_of
from tests.benchmarks.subject import Subject

TASKS = 100_000
FLOORS = (500, 100, 1)
WORKERS = (1, 2)


def drained(
    subject: Subject, kind: str, tasks: int, workers: int, at_once: int | None = None, worker_kind: str = ""
) -> float:
    """Tasks a second of so many workers, each a process that runs `at_once` tasks at a time. Raises Unfit.

    `worker_kind`: the kind that the workers are told, where it is not that of the tasks.
    """
    tasks = subject.share(tasks)
    subject.fill(kind, tasks)
    subject.pipe.forget()
    counts = Counts()
    with subject.crew() as crew:
        for _ in range(workers):
            subject.start_worker(crew, at_once, worker_kind or (kind if at_once else ""))
        for message in subject.pipe.messages(check=crew.check):
            if message[0] == "count":
                counts.add(*message[1:])
                if counts.total >= tasks:
                    break
    return counts.rate()


def run(scene: Bench) -> Part:
    subjects = scene.subjects()
    part = scene.part("drain", "Drain: tasks a second from a full queue")
    for workers in WORKERS:
        compare(scene, part, subjects, workers)
    part.notes = notes(scene, subjects)
    return part


def compare(scene: Bench, part: Part, subjects: list[Subject], workers: int) -> None:
    """One table: all of them in turn."""
    tasks = scene.tasks(TASKS)
    floors: list[Floor | PythonFloor] = [*(Floor(scene.server, batch) for batch in FLOORS), PythonFloor(scene.server)]
    measures: dict[str, Callable[[], float]] = {floor.name: partial(floor.drain, tasks, workers) for floor in floors}
    measures |= {subject.name: partial(drained, subject, "noop", tasks, workers) for subject in subjects}
    label = f"no-op tasks, {workers} worker{'s'[: workers - 1]}"
    figures = scene.alternate(label, measures, scene.rounds(), "tasks/s")
    part.tables.append(rates(f"{tasks:,} {label}", "tasks a second", figures))
    part.figures[label] = figures


def notes(scene: Bench, subjects: list[Subject], settings: Mapping[str, str] | None = None) -> list[str]:
    """List the subjects with their settings (those of a drain unless others are given), and who was left out."""
    told = [f"{subject.name} {version_of(subject.peer.package)}".strip() for subject in subjects]
    used = settings or {subject.name: subject.peer.settings for subject in subjects}
    lines = [f"{name}: {used[subject.name]}" for name, subject in zip(told, subjects, strict=True)]
    fewer = [f"{s.name} 1/{s.peer.one_in}" for s in subjects if s.peer.one_in > 1]
    if fewer:
        lines.append(
            f"Slow ones were given fewer tasks ({', '.join(fewer)}), as pgbench with one row per commit was (1/20)"
        )
    lines.append("Only a floor claims and completes bare rows, one of them in Python, which calls a function for each")
    return ["\n".join(f"- {line}." for line in lines), *scene.excuses.values()]


if __name__ == "__main__":
    sys.exit(alone.main("drain", sys.argv[1:], ("--tasks", "--rounds")))
