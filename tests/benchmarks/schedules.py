"""Schedules: how late their ticks come, how many are missed or doubled, and how long a thousand at once take.

A tick is late by the time from that of the schedule until a worker begins its task.
"""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.benchmarks.bench import Bench
from tests.benchmarks.idle import REGISTERED
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.pipe import Pipe
from tests.benchmarks.report import Part, Table, percentile, summaries, version_of, waits
from tests.benchmarks.subject import HANDLERS, Crew, Rowlock, Subject
from tests.waiting import wait_until

SETTINGS = {"max_connections": "200"}
SECONDS = 60.0
SUPERVISORS = (1, 10)
MANY = 1000
MINUTES = 3
EVERY_MINUTE = ("* * * * *", None)  # cron and every_seconds of ours; the peers' drivers have the same
PERIOD = 60.0
AHEAD_SECONDS = 5
PATIENCE_SECONDS = 60
PEERS = ("pg-boss", "Graphile Worker", "PgQueuer", "Procrastinate")
USED = {
    "pg-boss": "looks for what is due every second (its default is 30 s), then for the job that sends the job",
    "Graphile Worker": "a crontab, one process",
    "PgQueuer": "runs the function itself, without a job; it waits a second longer than the time that is due",
    "Procrastinate": "a periodic task; it waits half a second longer than the time that is due",
}
ADD = """
INSERT INTO tasks_schedule (name, task_path, queue_name, cron, every_seconds, overlap, next_at)
SELECT 'bench ' || n, %s, %s, %s, %s, 'allow',
    date_trunc('second', statement_timestamp()) + %s::int * interval '1 second'
FROM generate_series(1, %s) AS n RETURNING extract(epoch FROM next_at)::float8
"""
EMPTY = "TRUNCATE tasks_task, tasks_attempt, tasks_schedule, tasks_tick CASCADE"
TICKED = """
SELECT count(*) FROM tasks_tick WHERE outcome = 'enqueued' AND at >= to_timestamp(%s) AND at < to_timestamp(%s)
"""
LATE = """
SELECT extract(epoch FROM task.started_at - tick.at)::float8
FROM tasks_tick AS tick JOIN tasks_task AS task ON task.id = tick.task_id
WHERE tick.at >= to_timestamp(%s) AND tick.at < to_timestamp(%s)
"""
UNSTARTED = "SELECT count(*) FROM tasks_task WHERE started_at IS NULL"
# A task that no tick has enqueued, or the second one of a tick.
DOUBLED = "SELECT (SELECT count(*) FROM tasks_task) - (SELECT count(*) FROM tasks_tick WHERE outcome = 'enqueued')"
ENQUEUED_WITHIN = "SELECT extract(epoch FROM max(made_at) - to_timestamp(%s))::float8 FROM tasks_tick"


def run(scene: Bench) -> Part:
    subjects = scene.subjects(PEERS)
    ours = subjects[0]
    assert isinstance(ours, Rowlock)
    part = scene.part("schedules", "Schedules: how late ticks come")
    every_minute(scene, part, subjects)
    every_second(scene, part, ours)
    many_at_once(scene, part, ours)
    versions = [(subject.name, version_of(subject.peer.package)) for subject in subjects[1:]]
    part.notes = [
        "Late: from the time of the schedule until a worker begins the task. A supervisor is one `run_worker`, with "
        "one worker.",
        "\n".join(
            [
                *(f"- {name} {version}: {USED[name]}." for name, version in versions),
                "- pg-boss and Graphile Worker have no schedules of every second. django-tasks-db has no schedules.",
            ]
        ),
        *scene.excuses.values(),
    ]
    return part


def every_minute(scene: Bench, part: Part, subjects: list[Subject]) -> None:
    """One table: all of them side by side, in the same minutes, as they have next to nothing to do between them."""
    minutes = MINUTES
    with contextlib.ExitStack() as stack:
        for subject in subjects:
            subject.pipe = stack.enter_context(own_pipe())
        running = {subject: stack.enter_context(ticking(subject)) for subject in subjects}
        begins = (time.time() // PERIOD + 1) * PERIOD
        if begins - time.time() < AHEAD_SECONDS:
            begins += PERIOD
        time.sleep(begins - time.time())
        late: dict[str, list[float]] = {}
        for subject, crew in running.items():
            try:
                late[subject.name] = [at % PERIOD for at in ticks(subject, crew, begins, minutes)]
            except Unfit as reason:
                scene.excuse(subject.name, reason)
            else:
                worst = max(late[subject.name])
                scene.say(f"every minute: {subject.name}, {minutes} ticks, the last to come {1000 * worst:.0f} ms late")
    for subject in subjects:
        subject.pipe = scene.pipe
    part.tables.append(waits(f"{minutes} ticks of a schedule of every minute", late))
    part.figures["every minute"] = summaries(late)


@contextlib.contextmanager
def own_pipe() -> Iterator[Pipe]:
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    pipe = Pipe(folder)
    try:
        yield pipe
    finally:
        pipe.close()
        shutil.rmtree(folder)


@contextlib.contextmanager
def ticking(subject: Subject) -> Iterator[Crew]:
    """It runs, with one schedule of every minute. Raises Unfit."""
    if isinstance(subject, Rowlock):
        subject.execute(EMPTY)
        add(subject, "tick", *EVERY_MINUTE)
        with supervisors(subject, 1) as crew:
            yield crew
        subject.execute(EMPTY)
        return
    with subject.crew() as crew:
        subject.start(crew, "tick")
        subject.pipe.await_word("working", check=crew.check)
        yield crew


def ticks(subject: Subject, crew: Crew, begins: float, number: int) -> list[float]:
    """When the handlers of so many ticks began, from this time on: at a start some run what was due before."""
    found: list[float] = []
    for kind, *words in subject.pipe.messages(patience=2 * PERIOD + PATIENCE_SECONDS, check=crew.check):
        if kind == "ticked" and float(words[0]) >= begins:
            found.append(float(words[0]))
        if len(found) == number:
            break
    return found


def every_second(scene: Bench, part: Part, ours: Rowlock) -> None:
    """One table, a line for each number of supervisors."""
    seconds = max(1, round(scene.seconds(SECONDS)))
    table = Table(
        f"Rowlock: a schedule of every second for {seconds} s",
        ["milliseconds", "ticks", "p50", "p99", "max", "missed", "doubled"],
    )
    for number in SUPERVISORS:
        late: list[float] = []
        missed = doubled = 0
        for _ in range(scene.rounds(1)):
            found = second_by_second(ours, number, seconds)
            late, missed, doubled = late + found[0], missed + found[1], doubled + found[2]
        shares = [round(1000 * percentile(late, share), 2) for share in (0.5, 0.99, 1.0)]
        table.rows.append([supervised(number), len(late), *shares, missed, doubled])
        part.figures[f"every second, {supervised(number)}"] = summaries({"late": late})
        scene.say(f"every second, {supervised(number)}: p99 {shares[1]:.1f} ms, {missed} missed, {doubled} doubled")
    part.tables.append(table)


def second_by_second(ours: Rowlock, number: int, seconds: int) -> tuple[list[float], int, int]:
    """How late each tick came, how many were missed, and how many tasks were too many."""
    ours.execute(EMPTY)
    with supervisors(ours, number), connected(ours) as session:
        began = add(ours, "noop", None, 1, ahead=AHEAD_SECONDS)
        ended = began + seconds
        time.sleep(max(0.0, ended - time.time()))
        wait_until(lambda: value(session, TICKED, ended, ended + seconds), seconds=PATIENCE_SECONDS)
        wait_until(lambda: not value(session, UNSTARTED), seconds=PATIENCE_SECONDS)
        return counted(session, began, seconds)


def counted(session: psycopg.Connection, began: float, seconds: int) -> tuple[list[float], int, int]:
    """As `second_by_second` returns it, by the tables, at one moment."""
    with session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        late = [row[0] for row in session.execute(LATE, [began, began + seconds])]
        missed = seconds - int(value(session, TICKED, began, began + seconds))
        return late, missed, int(value(session, DOUBLED))


def many_at_once(scene: Bench, part: Part, ours: Rowlock) -> None:
    """One table: so many schedules are due in one second, and nobody runs their tasks."""
    many = min(MANY, scene.tasks(MANY))
    table = Table(
        f"Rowlock: {many:,} schedules due at once", ["", "seconds until all are enqueued", "ticks", "doubled"]
    )
    for number in SUPERVISORS:
        for _ in range(scene.rounds(1)):
            ours.execute(EMPTY)
            with supervisors(ours, number), connected(ours) as session:
                due = add(ours, "noop", None, 86_400, number=many, queue="nobody", ahead=AHEAD_SECONDS)
                wait_until(
                    lambda: value(session, "SELECT count(*) FROM tasks_tick") >= many,
                    seconds=AHEAD_SECONDS + PATIENCE_SECONDS,
                )
                row = [value(session, ENQUEUED_WITHIN, due), many, int(value(session, DOUBLED))]
            table.rows.append([supervised(number), *row])
            scene.say(f"{many:,} schedules at once, {supervised(number)}: {row[0]:.2f} s")
    ours.execute(EMPTY)
    part.tables.append(table)
    part.figures["at once"] = {str(row[0]): row[1:] for row in table.rows}


@contextlib.contextmanager
def supervisors(ours: Rowlock, number: int) -> Iterator[Crew]:
    """So many, each with a worker for the queue `default`."""
    argv = ["manage.py", "run_worker", "-v0", "--queue", "default"]
    ours.execute("TRUNCATE tasks_worker CASCADE")
    with ours.crew() as crew, connected(ours) as session:
        for _ in range(number):
            crew.start([ours.command[0], *argv], ours.environment())

        def all_are_there() -> bool:
            crew.check()
            return value(session, REGISTERED) == number

        wait_until(all_are_there, seconds=2 * PATIENCE_SECONDS)
        yield crew
        crew.finish()


def add(
    ours: Rowlock, task: str, cron: str | None, every: int | None, *,
    number: int = 1, queue: str | None = None, ahead: int | None = None,
) -> float:  # fmt: skip
    """Add so many schedules that are due in `ahead` seconds, and return when; None: by their own times, and 0."""
    with connected(ours) as session:
        return value(session, ADD, f"{HANDLERS}.tasks.{task}", queue, cron, every, ahead, number) or 0.0


@contextlib.contextmanager
def connected(ours: Rowlock) -> Iterator[psycopg.Connection]:
    with psycopg.connect(ours.url, autocommit=True) as session:
        yield session


def value(session: psycopg.Connection, statement: str, *params: object) -> Any:
    row = session.execute(statement, params).fetchone()
    return row[0] if row else None


def supervised(number: int) -> str:
    return f"{number} supervisor{'s' if number > 1 else ''}"
