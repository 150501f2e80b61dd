"""Limits: tasks a second through one hot key, through as many keys as tasks, and past tasks that a limit holds back.

The tasks do nothing, so that the claim is what is measured.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import psycopg

from tests.benchmarks.bench import Bench
from tests.benchmarks.drain import drained
from tests.benchmarks.idle import HOLD, PRESENT
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.report import Part, Table, rates, version_of
from tests.benchmarks.subject import HANDLERS, Crew, Rowlock, Subject

TASKS = 100_000
HOT_TASKS = 4_000
HELD = 100_000
HELD_KEYS = 1000
LIMIT = 8
WORKERS = (1, 2)
OURS, PLAIN = "Rowlock", "alone"
HOT = ("pg-boss", "PgQueuer")
KEYS = ("pg-boss", "Graphile Worker", "Procrastinate")
HOT_GOAL, KEYS_GOAL, HELD_GOAL = 500, 0.5, 0.9
USED = {
    "Rowlock": "`concurrency_key` with `concurrency_limit`, over all workers",
    "pg-boss": "a `group` of each job and `groupConcurrency` of the worker; batches of 8 for one key, else 1,000",
    "Graphile Worker": "a named queue, which runs one job at a time; it has no other limit",
    "PgQueuer": "`concurrency_limit` of an entrypoint, each of which is declared in code: it has no 100,000 of them",
    "Procrastinate": "`lock`, one job at a time; two jobs at once beside held-back ones, as one of them holds the lock",
}
HOT_ROWS = """
INSERT INTO tasks_task (task_path, concurrency_key, concurrency_limit)
SELECT %s, 'hot', %s FROM generate_series(1, %s) AS n
"""
KEYED_ROWS = """
INSERT INTO tasks_task (task_path, concurrency_key, concurrency_limit)
SELECT %s, 'key' || n, 1 FROM generate_series(1, %s) AS n
"""
# Before the others in the queue, behind a task of each key that another worker runs.
HOLDING_ROWS = """
INSERT INTO tasks_task (task_path, concurrency_key, concurrency_limit, status, claimed_by, attempt, started_at, slot)
SELECT %s, 'held' || n, 1, 'PROCESSING', 'other1', 1, now(), 1 FROM generate_series(1, %s) AS n
"""
HELD_ROWS = """
INSERT INTO tasks_task (task_path, concurrency_key, concurrency_limit)
SELECT %s, 'held' || 1 + n %% %s, 1 FROM generate_series(1, %s) AS n
"""
PLAIN_ROWS = "INSERT INTO tasks_task (task_path) SELECT %s FROM generate_series(1, %s) AS n"
LEFT = "SELECT count(*) FROM tasks_task WHERE concurrency_key LIKE 'held%' AND status = 'READY'"


class Limited(Rowlock):
    """Rowlock with tasks under a limit; `held_keys`: how many keys the tasks have that are held back."""

    def __init__(self, scene: Bench, name: str = OURS, held_keys: int = 1) -> None:
        super().__init__(scene.server.url, scene.pipe, name)
        self.held_keys = held_keys

    def fill(self, kind: str, tasks: int) -> None:
        noop = f"{HANDLERS}.tasks.noop"
        self.empty()
        if kind == "hot":
            self.execute(HOT_ROWS, noop, LIMIT, tasks)
        elif kind == "keys":
            self.execute(KEYED_ROWS, noop, tasks)
        elif kind == "held":
            self.execute(HOLDING_ROWS, noop, self.held_keys)
            self.execute(HELD_ROWS, noop, self.held_keys, held())
        if kind in ("noop", "held"):
            self.execute(PLAIN_ROWS, noop, tasks)
        self.execute("VACUUM ANALYZE tasks_task")
        self.execute("CHECKPOINT")

    def start_worker(self, crew: Crew, at_once: int | None = None, kind: str = "") -> None:
        """As in a drain, whatever is held back."""
        super().start_worker(crew, at_once)


def limited(subject: Subject, kind: str, tasks: int, workers: int, told: str) -> float:
    """Tasks a second. Raises Unfit, also if one of ours ran that a limit holds back."""
    rate = drained(subject, kind, tasks, workers, worker_kind=told)
    if kind == "held" and isinstance(subject, Limited):
        with psycopg.connect(subject.url) as connection:
            [[left]] = connection.execute(LEFT).fetchall()
        if left != held():
            raise Unfit(f"{held() - left} tasks ran that a limit holds back")
    return rate


def held() -> int:
    """How many tasks are held back: the peers' drivers are told."""
    return int(os.environ["BENCH_HELD"])


@contextmanager
def another_worker(subject: Rowlock) -> Iterator[None]:
    """A worker is there that holds every slot of the tasks that are held back, and never ends one."""
    with psycopg.connect(subject.url, autocommit=True) as session:
        session.execute(HOLD, [1])
        session.execute(PRESENT, [1])
        yield
        session.execute("TRUNCATE tasks_task, tasks_worker CASCADE")


def run(scene: Bench) -> Part:
    os.environ["BENCH_LIMIT"] = str(LIMIT)
    os.environ["BENCH_HELD"] = str(min(HELD, scene.options.tasks or HELD))
    peers = scene.subjects(tuple(USED))[1:]
    ours = Limited(scene)
    part = scene.part("limits", "Limits: tasks a second that do nothing, under a limit and beside one")
    for workers in WORKERS:
        through_one_key(scene, part, [ours, *named(peers, HOT)], workers)
    for workers in WORKERS:
        through_many_keys(scene, part, [ours, *named(peers, KEYS)], workers)
    with another_worker(ours):
        many = Limited(scene, f"Rowlock, held back by {HELD_KEYS:,} keys", HELD_KEYS)
        past_held_ones(scene, part, [ours, many, *peers])
    versions = [f"{subject.name} {version_of(subject.peer.package)}".strip() for subject in [ours, *peers]]
    settings = [f"- {told}: {USED[s.name]}." for told, s in zip(versions, [ours, *peers], strict=True)]
    part.notes = [
        "All tasks do nothing. A limit counts what a worker has claimed, so it bounds the batch. Slow ones are given "
        "fewer tasks, as in a drain.",
        "\n".join([*settings, "- django-tasks-db has no limits and takes no part."]),
        *scene.excuses.values(),
    ]
    return part


def named(subjects: list[Subject], names: tuple[str, ...]) -> list[Subject]:
    return [subject for subject in subjects if subject.name in names]


def through_one_key(scene: Bench, part: Part, subjects: list[Subject], workers: int) -> None:
    """One table: all tasks have one key, of which eight may run at once."""
    tasks = min(scene.tasks(HOT_TASKS), HOT_TASKS)
    measures: dict[str, Callable[[], float]] = {
        s.name: partial(limited, s, "hot", tasks, workers, "hot") for s in subjects
    }
    label = f"tasks through one key with a limit of {LIMIT}, {plural(workers)}"
    figures = scene.alternate(label, measures, scene.rounds(), "tasks/s")
    table = rates(f"{tasks:,} {label}", "tasks a second", figures)
    table.notes.append(f"Goal: {HOT_GOAL} a second.")
    part.tables.append(table)
    part.figures[label] = figures


def through_many_keys(scene: Bench, part: Part, subjects: list[Subject], workers: int) -> None:
    """Two tables: each task has a key of its own with a limit of one; and that beside the same without keys."""
    tasks = scene.tasks(TASKS)
    label = f"keys with a limit of one and one task each, {plural(workers)}"
    figures, alone = beside(scene, label, subjects, "keys", tasks, workers)
    part.tables.append(rates(f"{tasks:,} {label}", "tasks a second", figures))
    part.tables.append(shares(f"{tasks:,} {label}: of the drain without keys", figures, alone, KEYS_GOAL))
    part.figures[label] = {"keys": figures, "without": alone}


def past_held_ones(scene: Bench, part: Part, subjects: list[Subject]) -> None:
    """Two tables: tasks without a key behind those that a limit of one holds back; and the share of that."""
    tasks = scene.tasks(TASKS)
    label = f"tasks without a key behind {held():,} that a limit holds back, 1 worker"
    figures, alone = beside(scene, label, subjects, "held", tasks, 1)
    part.tables.append(rates(f"{tasks:,} {label}", "tasks a second", figures))
    part.tables.append(shares(f"{tasks:,} {label}: of the drain without these", figures, alone, HELD_GOAL))
    part.figures[label] = {"held back": figures, "without": alone}


def beside(
    scene: Bench, label: str, subjects: list[Subject], kind: str, tasks: int, workers: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Tasks a second of each with tasks of this kind; and with the same worker and plain tasks, in turn."""
    measures: dict[str, Callable[[], float]] = {}
    alone = {s.name: f"{s.name.partition(',')[0]}, {PLAIN}" for s in subjects}  # two of ours have one drain to beat
    for s in subjects:
        measures[s.name] = partial(limited, s, kind, tasks, workers, kind)
        measures.setdefault(alone[s.name], partial(limited, s, "noop", tasks, workers, kind))
    figures = scene.alternate(label, measures, scene.rounds(), "tasks/s")
    return (
        {name: figures[name] for name in alone if name in figures},
        {name: figures[plain] for name, plain in alone.items() if plain in figures},
    )


def shares(title: str, figures: dict[str, list[float]], alone: dict[str, list[float]], goal: float) -> Table:
    """How much of its own drain each keeps, the most first."""
    table = Table(title, ["", "with", "without", "share"], notes=[f"Goal: {goal}."])
    for name in figures.keys() & alone.keys():
        medians = statistics.median(figures[name]), statistics.median(alone[name])
        table.rows.append([name, *medians, medians[0] / medians[1]])
    table.rows.sort(key=lambda row: -float(row[3] or 0))
    return table


def plural(workers: int) -> str:
    return f"{workers} worker{'s' if workers > 1 else ''}"
