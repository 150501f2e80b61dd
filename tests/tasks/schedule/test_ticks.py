"""Ticks, on a database whose clock the test sets: what is due, missed, held by an earlier task, and broken."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tasks.exceptions import StaleVersion
from tasks.framework.decorator import task
from tasks.schedule import ticks
from tasks.schedule.declared import NEVER, Scheduler
from tasks.support.database import fetch
from tests import databases
from tests.databases import QueueDatabase
from tests.shifted import Clock
from tests.tasks import handlers

T0 = datetime(2026, 5, 4, 12, tzinfo=UTC)
TEN_MINUTES = timedelta(minutes=10)
PATH = handlers.nothing.module_path
ADD = """
INSERT INTO tasks_schedule (name, task_path, cron, every_seconds, timezone, missed, overlap, next_at, ends_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""


@task(ordering_key=lambda *args: 1 // 0)
def refuse_a_key(*args: object) -> None:
    """Its key cannot be computed."""


@task(unique_key="once")
def unique() -> None:
    """Only one is unfinished."""


@task(concurrency_key="three", concurrency_limit=3)
def limited() -> None:
    """Three run at once."""


@pytest.fixture(scope="module")
def shifted_clock(template_url: str) -> Iterator[Clock]:
    with databases.copy_of(template_url) as database:
        yield Clock(database)


@pytest.fixture
def clock(shifted_clock: Clock) -> Clock:
    """The clock stands at T0, and the tables are empty."""
    shifted_clock.database.rows("TRUNCATE tasks_schedule, tasks_tick, tasks_task CASCADE")
    shifted_clock.set(T0)
    return shifted_clock


@pytest.fixture
def database(clock: Clock) -> QueueDatabase:
    return clock.database


@pytest.fixture
def connection(clock: Clock) -> Iterator[psycopg.Connection]:
    with psycopg.connect(clock.database.url, autocommit=True, options="-c lock_timeout=5s") as connection:
        yield connection


def add(
    database, name="s", *, path=PATH, cron=None, every=None, timezone="UTC", missed="skip", overlap="skip", at=T0,
    ends_at=None,
) -> None:  # fmt: skip
    every = 600 if every is None and cron is None else every
    database.rows(ADD, name, path, cron, every, timezone, missed, overlap, at, ends_at)


def outcomes(database, name="s") -> list[tuple[timedelta, str, int]]:
    rows = database.rows("SELECT at, outcome, times FROM tasks_tick WHERE schedule_name = %s ORDER BY at", name)
    return [(row.at - T0, row.outcome, row.times) for row in rows]


def row_of(database, name="s"):
    [row] = database.rows("SELECT * FROM tasks_schedule WHERE name = %s", name)
    return row


def number_of_tasks(database) -> int:
    return database.value("SELECT count(*) FROM tasks_task")


def test_a_tick_enqueues_its_task_and_sets_its_next_time(database, clock, connection):
    database.rows(ADD, "s", PATH, "0 * * * *", None, "UTC", "skip", "skip", T0, None)
    database.rows("UPDATE tasks_schedule SET args = '[1]', kwargs = '{\"a\": 2}', queue_name = 'mail', priority = 7")
    assert ticks.tick(connection) == 3600
    [task] = database.rows("SELECT * FROM tasks_task")
    assert (task.task_path, task.args, task.kwargs, task.queue_name, task.priority) == (PATH, [1], {"a": 2}, "mail", 7)
    row = row_of(database)
    assert (row.next_at, row.last_at, row.last_outcome, row.last_task_id) == (
        T0 + timedelta(hours=1), T0, "enqueued", task.id,
    )  # fmt: skip
    [made] = database.rows("SELECT * FROM tasks_tick")
    assert (made.at, made.outcome, made.task_id, made.times) == (T0, "enqueued", task.id, 1)
    assert ticks.tick(connection) == 3600
    assert number_of_tasks(database) == 1


def test_a_schedule_without_a_next_time_gets_one_and_does_not_tick(database, connection):
    add(database, cron="0 * * * *", at=None)
    assert ticks.tick(connection) == 3600
    assert (row_of(database).next_at, number_of_tasks(database)) == (T0 + timedelta(hours=1), 0)


def test_an_interval_counts_from_its_own_times_and_does_not_drift(database, clock, connection):
    add(database, every=10, overlap="allow")
    for second in range(0, 60, 7):
        clock.set(T0 + timedelta(seconds=second, milliseconds=300))
        ticks.tick(connection)
    assert [at.total_seconds() for at, *_ in outcomes(database)] == [0, 10, 20, 30, 40, 50]


FREE, READY, RUNNING, OVER = None, "READY", "PROCESSING", "COMPLETED"
MISSED_SEVEN, ONE_FOR_SEVEN, HELD_SEVEN = {"missed": [7]}, {"enqueued": [7]}, {"skipped": [7]}
ONE, SEVEN, NOTHING = {"enqueued": [1]}, {"enqueued": [1] * 7}, {}


@pytest.mark.parametrize(
    ("missed", "overlap", "last", "wanted"),
    [
        *(("skip", overlap, last, MISSED_SEVEN) for overlap in ("skip", "queue", "allow") for last in (FREE, READY)),
        ("once", "skip", FREE, ONE_FOR_SEVEN),
        ("once", "skip", READY, HELD_SEVEN),
        ("once", "skip", RUNNING, HELD_SEVEN),
        ("once", "skip", OVER, ONE_FOR_SEVEN),
        ("once", "queue", FREE, ONE_FOR_SEVEN),
        ("once", "queue", READY, HELD_SEVEN),
        ("once", "queue", RUNNING, ONE_FOR_SEVEN),
        ("once", "allow", RUNNING, ONE_FOR_SEVEN),
        ("all", "skip", FREE, ONE),
        ("all", "skip", READY, NOTHING),
        ("all", "skip", RUNNING, NOTHING),
        ("all", "skip", OVER, ONE),
        ("all", "queue", READY, NOTHING),
        ("all", "queue", RUNNING, ONE),
        ("all", "allow", FREE, SEVEN),
        ("all", "allow", RUNNING, SEVEN),
    ],
)
def test_what_becomes_of_the_times_of_an_outage(database, clock, connection, missed, overlap, last, wanted):
    add(database, missed=missed, overlap=overlap)
    if last:
        [task_id] = database.enqueue(handlers.nothing)
        by, over = ("'w'" if last == RUNNING else "NULL"), ("now()" if last == OVER else "NULL")
        columns = f"status = %s, claimed_by = {by}, finished_at = {over}, attempt = 1"
        database.rows(f"UPDATE tasks_task SET {columns} WHERE id = %s", last, task_id)
        database.rows("UPDATE tasks_schedule SET last_task_id = %s", task_id)
    clock.set(T0 + timedelta(hours=1, minutes=5))
    ticks.tick(connection)
    found: dict[str, list[int]] = {}
    for _, outcome, times in outcomes(database):
        found.setdefault(outcome, []).append(times)
    assert found == wanted
    waits = missed == "all" and wanted in (ONE, NOTHING)
    due = T0 + len(wanted) * TEN_MINUTES if waits else T0 + 7 * TEN_MINUTES
    assert row_of(database).next_at == due


def test_all_beside_skip_makes_each_missed_task_after_the_other(database, clock, connection):
    add(database, missed="all", overlap="skip")
    clock.set(T0 + timedelta(hours=1, minutes=5))
    for number in range(1, 8):
        assert ticks.tick(connection) == (ticks.RETRY_SECONDS if number < 7 else 300)
        assert number_of_tasks(database) == number
        assert ticks.tick(connection) == (ticks.RETRY_SECONDS if number < 7 else 300)
        database.rows("UPDATE tasks_task SET status = 'COMPLETED', finished_at = now()")
    assert [outcome for _, outcome, _ in outcomes(database)] == ["enqueued"] * 7


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_times_within_the_grace_are_late_and_not_missed(database, clock, connection, missed):
    add(database, every=20, missed=missed, overlap="allow")
    clock.set(T0 + timedelta(seconds=60))
    ticks.tick(connection)
    assert outcomes(database) == [(timedelta(seconds=second), "enqueued", 1) for second in (0, 20, 40, 60)]


def test_a_tick_that_meets_its_unfinished_task_is_skipped_and_says_because_of_which(database, clock, connection):
    add(database)
    ticks.tick(connection)
    [task] = database.rows("SELECT * FROM tasks_task")
    clock.set(T0 + TEN_MINUTES)
    ticks.tick(connection)
    row = row_of(database)
    assert (row.last_outcome, row.last_at, row.held_by_task_id) == ("skipped", T0 + TEN_MINUTES, task.id)
    database.rows("UPDATE tasks_task SET status = 'CANCELLED', finished_at = now()")
    clock.set(T0 + 2 * TEN_MINUTES)
    ticks.tick(connection)
    assert [outcome for _, outcome, _ in outcomes(database)] == ["enqueued", "skipped", "enqueued"]
    assert row_of(database).held_by_task_id is None


@pytest.mark.parametrize(("overlap", "key"), [("skip", "schedule:s"), ("queue", "schedule:s"), ("allow", None)])
def test_tasks_that_may_not_overlap_share_a_key(database, connection, overlap, key):
    add(database, overlap=overlap)
    ticks.tick(connection)
    assert database.value("SELECT ordering_key FROM tasks_task") == key


def test_a_key_that_the_task_declares_stays(database, connection):
    add(database, path=handlers.by_account.module_path)
    database.rows("UPDATE tasks_schedule SET args = '[\"anna\"]'")
    ticks.tick(connection)
    assert database.value("SELECT ordering_key FROM tasks_task") == "anna"


def test_many_missed_times_come_in_batches_and_the_row_keeps_how_far(database, clock, connection, monkeypatch):
    monkeypatch.setattr(ticks, "ROUND_SECONDS", 0.0)  # one batch a call
    add(database, every=60, missed="all", overlap="allow")
    clock.set(T0 + timedelta(minutes=249, seconds=30))
    assert [ticks.tick(connection), number_of_tasks(database)] == [0.0, 100]
    assert row_of(database).next_at == T0 + timedelta(minutes=100)
    assert [ticks.tick(connection), number_of_tasks(database)] == [0.0, 200]
    ticks.tick(connection)
    assert (number_of_tasks(database), row_of(database).next_at) == (250, T0 + timedelta(minutes=250))


def test_a_schedule_that_another_session_holds_is_left_to_it(database, connection):
    add(database)
    with psycopg.connect(database.url) as other:
        other.execute("SELECT FROM tasks_schedule FOR UPDATE")
        assert ticks.tick(connection) == ticks.RETRY_SECONDS
        assert number_of_tasks(database) == 0
    ticks.tick(connection)
    assert number_of_tasks(database) == 1


def test_a_row_that_changed_after_it_was_read_is_not_overwritten(database, connection):
    add(database)
    [seen] = fetch(connection, ticks.LOCK_DUE, {"paths": [PATH], "passed": []})
    database.rows("UPDATE tasks_schedule SET priority = 1")
    with pytest.raises(StaleVersion):
        ticks.write(connection, seen, ticks.Made(next_at=T0 + TEN_MINUTES))
    database.rows("UPDATE tasks_schedule SET version = 2, next_at = %s", T0 - TEN_MINUTES)
    [seen] = fetch(connection, ticks.LOCK_DUE, {"paths": [PATH], "passed": []})
    with pytest.raises(StaleVersion):
        ticks.write(connection, {**seen, "next_at": T0}, ticks.Made(next_at=T0 + TEN_MINUTES))


def test_a_time_that_has_its_tick_never_gets_a_second_one(database, clock, connection):
    add(database, overlap="allow", missed="all")
    ticks.tick(connection)
    database.rows("UPDATE tasks_schedule SET next_at = %s", T0)
    clock.set(T0 + TEN_MINUTES)
    ticks.tick(connection)
    assert [at for at, *_ in outcomes(database)] == [timedelta(0), TEN_MINUTES]
    assert number_of_tasks(database) == 2
    with pytest.raises(psycopg.errors.UniqueViolation, match="tasks_tick_once"):
        database.rows("INSERT INTO tasks_tick (schedule_name, at, outcome) VALUES ('s', %s, 'missed')", T0)


def test_a_clock_that_steps_back_loses_and_doubles_nothing(database, clock, connection):
    add(database, overlap="allow", missed="all")
    ticks.tick(connection)
    for minute in (10, 5, 11, 9, 30, 12, 40):
        clock.set(T0 + timedelta(minutes=minute))
        ticks.tick(connection)
    assert [at for at, *_ in outcomes(database)] == [number * TEN_MINUTES for number in range(5)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("cron = 'soon', every_seconds = NULL", "InvalidSchedule: 'soon' is not a cron expression"),
        ("timezone = 'Moon/Crater', cron = '0 * * * *', every_seconds = NULL", "not a known time zone"),
        (f"task_path = '{refuse_a_key.module_path}'", "ZeroDivisionError"),
    ],
)
def test_a_broken_schedule_is_paused_with_the_reason_and_holds_up_no_other(database, connection, change, problem):
    add(database, "broken", at=T0 - TEN_MINUTES, missed="all")
    add(database)
    database.rows(f"UPDATE tasks_schedule SET {change}, next_at = next_at + interval '1 s' WHERE name = 'broken'")
    assert ticks.tick(connection) == 600
    row = row_of(database, "broken")
    assert (row.paused, row.paused_by, problem in row.problem) == (True, "rowlock", True)
    assert outcomes(database) == [(timedelta(0), "enqueued", 1)]
    database.rows("UPDATE tasks_schedule SET paused = false WHERE name = 'broken'")
    assert row_of(database, "broken").problem == ""


def test_no_tick_after_the_end(database, clock, connection):
    add(database, every=600, ends_at=T0 + timedelta(minutes=25), missed="all", overlap="allow")
    clock.set(T0 + timedelta(hours=2))
    assert ticks.tick(connection) is None
    row = row_of(database)
    assert [at for at, *_ in outcomes(database)] == [number * TEN_MINUTES for number in range(3)]
    assert (row.next_at, row.ended_at) == (None, clock.now())
    database.rows("UPDATE tasks_schedule SET ends_at = NULL")
    ticks.tick(connection)
    assert row_of(database).next_at == clock.now() + TEN_MINUTES


def test_a_function_that_is_not_known_here_is_left_to_others(database, connection):
    add(database, path="shop.tasks.of_another_version")
    assert ticks.due_in(connection) is None
    assert ticks.tick(connection) is None
    assert row_of(database).next_at == T0


def test_without_a_schedule_nothing_is_asked(database, connection):
    scheduler = Scheduler()
    scheduler.tick(connection)
    assert scheduler.due_at == NEVER
    connection.close()
    scheduler.tick(connection)  # a statement would fail


def test_a_locked_table_is_waited_for_without_losing_the_connection(database, connection):
    add(database)
    scheduler = Scheduler()
    scheduler.tick(connection)
    database.rows("UPDATE tasks_schedule SET next_at = %s", T0 + timedelta(microseconds=1))
    database.rows("UPDATE shifted.clock SET base = base + interval '1 s'")
    connection.execute("SET lock_timeout = '50ms'")
    with psycopg.connect(database.url) as migration:
        migration.execute("LOCK TABLE tasks_task")
        scheduler.due_at = 0.0
        scheduler.tick(connection)
        assert number_of_ticks(connection) == 1
        assert not row_of(database).paused
    scheduler.due_at = 0.0
    scheduler.tick(connection)
    assert number_of_ticks(connection) == 2


def number_of_ticks(connection) -> int:
    return connection.execute("SELECT count(*) FROM tasks_tick").fetchone()[0]


def test_a_tick_whose_unique_key_is_taken_is_skipped_and_names_the_holder(database, connection):
    [holder] = database.enqueue(handlers.nothing)
    database.rows("UPDATE tasks_task SET unique_key = 'once', unique_while = 'a' WHERE id = %s", holder)
    add(database, path=unique.module_path)
    assert ticks.tick(connection) > 0
    assert outcomes(database) == [(timedelta(0), "skipped", 1)]
    assert (row_of(database).held_by_task_id, number_of_tasks(database)) == (holder, 1)


def test_a_tick_whose_unique_key_is_held_up_waits_and_breaks_nothing(database, connection):
    add(database, path=unique.module_path)
    connection.execute("SET lock_timeout = '100ms'")
    with psycopg.connect(database.url) as other:
        other.execute("INSERT INTO tasks_task (task_path, unique_key, unique_while) VALUES (%s, 'once', 'a')", [PATH])
        assert ticks.tick(connection) == ticks.RETRY_SECONDS
        assert (row_of(database).problem, outcomes(database)) == ("", [])
        other.rollback()
    ticks.tick(connection)
    assert outcomes(database) == [(timedelta(0), "enqueued", 1)]


def test_a_task_with_a_limit_of_its_own_keeps_it_and_gets_no_ordering_key(database, connection):
    add(database, path=limited.module_path)
    ticks.tick(connection)
    [row] = database.rows("SELECT ordering_key, concurrency_key, concurrency_limit FROM tasks_task")
    assert tuple(row) == (None, "three", 3)
