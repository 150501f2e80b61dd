"""What a table costs that has grown: Rowlock's drain and its claim of one task, beside what is in the way or was.

Each kind of table is filled once, in a database of its own; then all are measured in turn against the empty one.
"""

import statistics
from collections.abc import Callable
from functools import partial

from tests import databases
from tests.benchmarks.bench import Bench
from tests.benchmarks.pipe import Counts
from tests.benchmarks.report import Part, Table
from tests.benchmarks.subject import Rowlock

TASKS, CLAIMS = 100_000, 5000  # a second and more each
FINISHED = 1_000_000
BEHIND = 100_000
BLOAT = 500_000
CHUNK = 250_000
GOAL, BLOAT_GOAL = 0.9, 0.5
EMPTY = "empty"
UNVACUUMED = "ALTER TABLE tasks_task SET (autovacuum_enabled = false, toast.autovacuum_enabled = false)"

# As a worker would leave them, without the triggers of single rows.
FINISHED_ROWS = """
INSERT INTO tasks_task (task_path, status, attempt, run_after, started_at, finished_at, finished_by, args)
SELECT 'tests.benchmarks.handlers.tasks.noop', 'COMPLETED', 1, at, at, at, 'w', '[]'
FROM (SELECT statement_timestamp() - interval '30 days' + n * interval '1 second' AS at
      FROM generate_series(%s::int, %s::int) AS n) AS row
"""
SCHEDULED_ROWS = """
INSERT INTO tasks_task (task_path, priority, run_after)
SELECT 'tests.benchmarks.handlers.tasks.noop', n %% 3, statement_timestamp() + interval '1 day'
FROM generate_series(1, %s::int) AS n
"""
# A hundred keys, each behind a first task that waits for its retry tomorrow.
HELD_BACK_ROWS = """
INSERT INTO tasks_task (task_path, ordering_key, run_after)
SELECT 'tests.benchmarks.handlers.tasks.noop', 'key' || n %% 100,
    statement_timestamp() + CASE WHEN n <= 100 THEN interval '1 day' ELSE interval '0' END
FROM generate_series(1, %s::int) AS n
"""
PAUSED_QUEUE = "INSERT INTO tasks_queue (name, paused) VALUES ('paused', true)"
PAUSED_ROWS = """
INSERT INTO tasks_task (task_path, queue_name) SELECT 'tests.benchmarks.handlers.tasks.noop', 'paused'
FROM generate_series(1, %s::int)
"""
READY_ROWS = """
INSERT INTO tasks_task (task_path) SELECT 'tests.benchmarks.handlers.tasks.noop' FROM generate_series(1, %s::int)
"""
CLAIM_ROWS = "UPDATE tasks_task SET status = 'PROCESSING', claimed_by = 'w', attempt = 1, started_at = now()"
COMPLETE_ROWS = "UPDATE tasks_task SET status = 'COMPLETED', claimed_by = NULL, finished_at = now(), finished_by = 'w'"


class Grown(Rowlock):
    """Rowlock on a table with something in it."""

    def __init__(self, scene: Bench, number: int, name: str) -> None:
        super().__init__(scene.server.url, scene.pipe)
        self.scene = scene
        self.label = name
        self.is_vacuumed = True
        self.url = databases.named(scene.server.url, f"bench_growth_{number}")

    def add(self, tasks: int) -> None:
        """So many tasks that may run, behind what is there."""
        self.execute(READY_ROWS, tasks)
        self.execute("VACUUM ANALYZE tasks_task" if self.is_vacuumed else "ANALYZE tasks_task")
        self.execute("CHECKPOINT")

    def drain(self, tasks: int) -> float:
        """Tasks a second of one worker. Raises Unfit."""
        self.add(tasks)
        self.pipe.forget()
        counts = Counts()
        with self.crew() as crew:
            self.start_worker(crew)
            for kind, *words in self.pipe.messages(check=crew.check):
                if kind == "count":
                    counts.add(*words)
                if counts.total >= tasks:
                    break
            crew.finish()
        return counts.rate()

    def claim(self, claims: int) -> float:
        """Claims of one task a second, by the mean of so many. Raises Unfit."""
        self.add(claims)
        self.pipe.forget()
        with self.crew() as crew:
            self.start(crew, "claim", claims)
            [[seconds]] = self.pipe.await_word("claimed", check=crew.check)
        return 1 / float(seconds)


def run(scene: Bench) -> Part:
    part = scene.part("growth", "Growth: Rowlock beside what a table gathers")
    tables = filled(scene)
    tasks, claims = scene.tasks(TASKS), min(CLAIMS, scene.tasks(CLAIMS))
    for title, measures in {
        f"Drain of {tasks:,} tasks by one worker, tasks a second": {g.label: partial(g.drain, tasks) for g in tables},
        "Claims of one task a second, none waits for the disk": {g.label: partial(g.claim, claims) for g in tables},
    }.items():
        figures = scene.alternate(title, measures, scene.rounds())
        part.figures[title] = figures
        part.tables.append(compared(title, figures))
    part.notes = [
        f"Goals: {GOAL} of the empty table, {BLOAT_GOAL} without vacuum. The tasks that are measured stand behind "
        "everything else; scheduled ones have higher priorities too.",
        *scene.excuses.values(),
    ]
    return part


def compared(title: str, figures: dict[str, list[float]]) -> Table:
    table = Table(title, ["", "median", "least", "most", "of empty"])
    for name, values in figures.items():
        ratio = statistics.median(values) / statistics.median(figures[EMPTY]) if figures.get(EMPTY) else None
        table.rows.append([name, statistics.median(values), min(values), max(values), ratio])
    return table


def kinds(most: int) -> dict[str, Callable[[Grown], None]]:
    """What a table is filled with, by its name in the report; `most`: rows of the largest."""
    behind, bloat = min(BEHIND, most), min(BLOAT, most)
    found: dict[str, Callable[[Grown], None]] = {
        EMPTY: lambda grown: None,
        f"{most:,} finished": partial(finish, most),
        f"{behind:,} scheduled": lambda grown: grown.execute(SCHEDULED_ROWS, behind),
        f"{behind:,} held back by 100 keys": lambda grown: grown.execute(HELD_BACK_ROWS, behind),
        f"{behind:,} in a paused queue": partial(pause, behind),
        f"after {bloat:,} without vacuum": partial(leave_dead_rows, bloat),
    }
    if most >= 10 * FINISHED:
        found[f"{FINISHED:,} finished"] = partial(finish, FINISHED)
    return found


def filled(scene: Bench) -> list[Grown]:
    """One database for each kind, copied from an empty one."""
    empty = Rowlock(scene.server.url, scene.pipe)
    empty.prepare()
    empty.empty()
    found = []
    most = FINISHED if scene.options.finished is None else scene.options.finished
    for number, (name, fill) in enumerate(kinds(most).items()):
        grown = Grown(scene, number, name)
        databases.create(grown.url, template=empty.url)
        scene.say(f"filling a table: {name}")
        fill(grown)
        grown.execute("VACUUM ANALYZE" if grown.is_vacuumed else "ANALYZE")
        found.append(grown)
    return found


def finish(rows: int, grown: Grown) -> None:
    for first in range(1, rows + 1, CHUNK):
        grown.execute(FINISHED_ROWS, first, min(rows, first + CHUNK - 1))
        if first > 1:
            grown.scene.say(f"  {first - 1:,} of {rows:,}")


def pause(rows: int, grown: Grown) -> None:
    grown.execute(PAUSED_QUEUE)
    grown.execute(PAUSED_ROWS, rows)


def leave_dead_rows(rows: int, grown: Grown) -> None:
    """Tasks that were claimed and completed in batches while nobody cleaned up."""
    grown.is_vacuumed = False
    grown.execute(UNVACUUMED)
    grown.execute(READY_ROWS, rows)
    for statement in (CLAIM_ROWS, COMPLETE_ROWS):
        grown.execute(statement)
