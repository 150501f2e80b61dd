"""Unique keys: calls a second with a key of their own, with one hot key, and what the keys cost tasks without one.

No worker runs. A call with a key that is taken writes no task: what it gave back is checked by the rows that are there.
"""

import statistics
from collections.abc import Callable
from functools import partial

import psycopg

from tests import databases
from tests.benchmarks.bench import Bench
from tests.benchmarks.enqueue import enqueued
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.report import Part, Table, rates, version_of
from tests.benchmarks.subject import Rowlock, Subject

SECONDS = 2.0
KEYED = ("pg-boss", "Graphile Worker", "PgQueuer", "Procrastinate")
REPLACING = ("pg-boss", "Graphile Worker")
# What is called, by how many processes, and the peers that have it.
LOADS = [
    ("fresh", "Each call with a key of its own", 1, KEYED),
    ("same", "Each call with the same key, which keeps the first task", 1, KEYED),
    ("same", "Each call with the same key, which keeps the first task", 4, KEYED),
    ("replace", "Each call with the same key, which gives the first task the new arguments", 1, REPLACING),
]
USED = {
    "Rowlock": "`unique_key` of the arguments, `unique_while` active",
    "pg-boss": "`singletonKey` on a queue of the policy exclusive; `upsert` to replace",
    "Graphile Worker": "`job_key` with the mode unsafe_dedupe, which keeps; replace to replace",
    "PgQueuer": "`dedupe_key` with on_conflict skip; it replaces no arguments",
    "Procrastinate": "`queueing_lock`, held until the job begins; it raises for a duplicate, and replaces none",
}
WITHOUT_KEY = "Rowlock, without a key"
# A table as it was before tasks had keys and limits. Indexes, constraints and the trigger on these columns go with
# them; the claim's index comes back as it was.
HOWS = {"single": "one by one", "bulk": "a thousand at a time"}
BEFORE, NOW = "a table without columns for keys", "the table as it is"
GOAL = 0.95
DROP_KEYS = """
ALTER TABLE tasks_task DROP COLUMN unique_key CASCADE, DROP COLUMN unique_while CASCADE,
    DROP COLUMN concurrency_key CASCADE, DROP COLUMN concurrency_limit CASCADE,
    DROP COLUMN IF EXISTS rate_key CASCADE, DROP COLUMN IF EXISTS rate CASCADE,
    DROP COLUMN IF EXISTS period_seconds CASCADE, DROP COLUMN IF EXISTS slot CASCADE,
    DROP COLUMN IF EXISTS queue_slot CASCADE;
CREATE INDEX IF NOT EXISTS tasks_task_claim ON tasks_task (queue_name, priority DESC, run_after, id)
    WHERE status = 'READY' AND ordering_key IS NULL
"""


def called(subject: Subject, how: str, processes: int, seconds: float) -> float:
    """Calls a second. Raises Unfit, also if one key has more than one task."""
    rate = enqueued(subject, how, processes, seconds)
    if how in ("same", "replace"):
        table = subject.peer.table.partition(",")[0]
        with psycopg.connect(subject.url) as connection:
            [[rows]] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        if rows != 1:
            raise Unfit(f"{rows} tasks had the one key")
    return rate


def run(scene: Bench) -> Part:
    subjects = scene.subjects(KEYED)
    part = scene.part("unique", "Unique keys: calls a second that enqueue, or find the task that has the key")
    for how, told, processes, names in LOADS:
        compare(scene, part, [s for s in subjects if s.name in ("Rowlock", *names)], how, told, processes)
    cost_without_a_key(scene, part)
    versions = [f"{subject.name} {version_of(subject.peer.package)}".strip() for subject in subjects]
    settings = [f"- {told}: {USED[s.name]}." for told, s in zip(versions, subjects, strict=True)]
    part.notes = [
        f"Processes call for {scene.seconds(SECONDS):g} s, into an empty table, while no worker runs. With one key for "
        "all, one task is there at the end; this is checked.",
        "\n".join([*settings, "- django-tasks-db has no unique keys and takes no part."]),
        *scene.excuses.values(),
    ]
    return part


def compare(scene: Bench, part: Part, subjects: list[Subject], how: str, told: str, processes: int) -> None:
    """One table: all of them in turn; where nothing is kept out, beside the same without a key."""
    seconds = scene.seconds(SECONDS)
    measures: dict[str, Callable[[], float]] = {s.name: partial(called, s, how, processes, seconds) for s in subjects}
    if how == "fresh":
        measures[WITHOUT_KEY] = partial(called, subjects[0], "single", processes, seconds)
    label = f"{told}, {processes} process{'es' if processes > 1 else ''}"
    figures = scene.alternate(label, measures, scene.rounds(), "calls/s")
    part.figures[label] = figures
    part.tables.append(rates(label, "calls a second", figures))


def cost_without_a_key(scene: Bench, part: Part) -> None:
    """Enqueue tasks without a key into the table as it is, and into one without the columns for keys."""
    tables = {BEFORE: Rowlock(scene.server.url, scene.pipe), NOW: Rowlock(scene.server.url, scene.pipe)}
    tables[BEFORE].url = databases.named(scene.server.url, "bench_before_keys")
    databases.create(tables[BEFORE].url, template=tables[NOW].url)
    tables[BEFORE].execute(DROP_KEYS)
    table = Table(
        "Tasks without a key: tasks a second that one process enqueues",
        ["", BEFORE, NOW, "share"],
        notes=[f"Goal: {GOAL} of the table without these columns, their indexes and constraints."],
    )
    for how, told in HOWS.items():
        measures: dict[str, Callable[[], float]] = {
            name: partial(enqueued, table, how, 1, scene.seconds(SECONDS)) for name, table in tables.items()
        }
        label = f"without a key, {told}"
        figures = scene.alternate(label, measures, scene.rounds(), "tasks/s")
        before, now = (statistics.median(figures[name]) for name in (BEFORE, NOW))
        table.rows.append([told, before, now, now / before])
        part.figures[label] = figures
    part.tables.append(table)
