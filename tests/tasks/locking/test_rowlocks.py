"""Which session holds which row: every kind of lock, and no lock that is gone."""

import threading

import psycopg
import pytest
from django.db import connection

from tasks.locking import rowlocks
from tasks.locking.rowlocks import Hold
from tasks.models import Task
from tests.sessions import session, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def task():
    return Task.objects.create(task_path="app.tasks.work")


def lock(conn: psycopg.Connection, task: Task, clause: str = "FOR NO KEY UPDATE") -> int:
    conn.execute(f"SELECT FROM tasks_task WHERE id = {task.pk} {clause}")
    return conn.info.backend_pid


def lock_of(task: Task) -> rowlocks.RowLock | None:
    return rowlocks.lockers(Task, [task.pk]).get(task.pk)


def pids(found: rowlocks.RowLock | None) -> set[int | None]:
    return {locker.pid for locker in found.lockers} if found else set()


@pytest.mark.parametrize("clause", ["FOR UPDATE", "FOR NO KEY UPDATE", "FOR SHARE"])
def test_a_locked_row_names_its_session(task, clause):
    with session("rowlock:worker:w7f") as other:
        pid = lock(other, task, clause)
        found = lock_of(task)
        [locker] = found.lockers
    assert (found.hold, locker.pid, locker.application_name) == (Hold.HELD, pid, "rowlock:worker:w7f")
    assert locker.transaction_seconds >= 0


@pytest.mark.parametrize("write", ["UPDATE tasks_task SET priority = 5", "DELETE FROM tasks_task"])
def test_an_uncommitted_write_holds_the_row(task, write):
    with session() as other:
        other.execute(f"{write} WHERE id = {task.pk}")
        assert pids(lock_of(task)) == {other.info.backend_pid}


def test_a_free_row_has_no_locker(task):
    assert lock_of(task) is None
    assert rowlocks.lockers(Task, []) == {}


def test_a_row_beside_the_locked_one_is_free(task):
    neighbour = Task.objects.create(task_path="app.tasks.work")
    with session() as other:
        lock(other, task)
        assert set(rowlocks.lockers(Task, [task.pk, neighbour.pk])) == {task.pk}


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("clause", ["FOR UPDATE", "FOR KEY SHARE"])
def test_a_locker_that_ended_is_forgotten(task, ending, clause):
    with session() as other:
        lock(other, task, clause)
        other.execute(ending)
        assert lock_of(task) is None


def test_a_write_that_was_rolled_back_is_forgotten(task):
    with session() as other:
        other.execute(f"UPDATE tasks_task SET priority = 5 WHERE id = {task.pk}")
        other.execute("ROLLBACK")
        assert lock_of(task) is None


def test_a_locker_whose_savepoint_was_rolled_back_is_forgotten(task):
    with session() as other:
        other.execute("SAVEPOINT inner_block")
        lock(other, task)
        other.execute("ROLLBACK TO inner_block")
        assert lock_of(task) is None


def test_a_session_that_was_ended_is_forgotten(task):
    with session() as other:
        pid = lock(other, task)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        assert lock_of(task) is None


def test_a_foreign_key_only_touches_the_row(task):
    with session() as other:
        other.execute(
            "INSERT INTO tasks_attempt (task_id, number, worker_id, outcome) VALUES (%s, 1, 'w7f', 'failed')", [task.pk]
        )
        found = lock_of(task)
        assert pids(found) == {other.info.backend_pid}
    assert found.hold is Hold.TOUCHED
    assert not found.is_exclusive


def test_an_update_beside_the_foreign_key_holds_the_row(task):
    with session() as other:
        other.execute(f"UPDATE tasks_task SET priority = 5 WHERE id = {task.pk}")
        other.execute(
            "INSERT INTO tasks_attempt (task_id, number, worker_id, outcome) VALUES (%s, 1, 'w7f', 'failed')", [task.pk]
        )
        assert lock_of(task).hold is Hold.HELD


def test_several_sharers_are_all_named(task):
    with session() as one, session() as two:
        expected = {lock(one, task, "FOR SHARE"), lock(two, task, "FOR SHARE")}
        found = lock_of(task)
    assert (found.hold, pids(found)) == (Hold.HELD, expected)
    assert {locker.mode for locker in found.lockers} == {"sh"}


def test_several_key_sharers_only_touch_the_row(task):
    with session() as one, session() as two:
        expected = {lock(one, task, "FOR KEY SHARE"), lock(two, task, "FOR KEY SHARE")}
        found = lock_of(task)
    assert (found.hold, pids(found)) == (Hold.TOUCHED, expected)


def test_an_updater_beside_a_key_sharer_is_the_holder(task):
    with session() as sharer, session() as updater:
        lock(sharer, task, "FOR KEY SHARE")
        pid = lock(updater, task, "FOR NO KEY UPDATE")
        found = lock_of(task)
    assert (found.hold, pids(found)) == (Hold.HELD, {pid})
    assert found.lockers[0].mode == "fornokeyupd"


def test_sharers_that_ended_are_forgotten(task):
    with session() as one, session() as two:
        lock(one, task, "FOR SHARE")
        lock(two, task, "FOR SHARE")
        one.rollback()
        two.rollback()
        assert lock_of(task) is None


def lock_in_nested_block(conn: psycopg.Connection, task: Task, clause: str = "FOR NO KEY UPDATE") -> int:
    """What Django's nested `atomic()` does."""
    conn.execute("CREATE TEMPORARY TABLE IF NOT EXISTS own (x int); INSERT INTO own VALUES (1)")
    conn.execute("SAVEPOINT inner_block")
    pid = lock(conn, task, clause)
    conn.execute("RELEASE SAVEPOINT inner_block")
    return pid


def test_a_released_savepoint_is_found_by_elimination(task):
    with session() as other, session() as unrelated:
        unrelated.execute("SELECT pg_current_xact_id()")
        pid = lock_in_nested_block(other, task)
        found = lock_of(task)
    assert (found.hold, pids(found)) == (Hold.HELD, {pid})


def test_a_released_savepoint_among_sharers_hides_only_itself(task):
    with session() as sharer, session() as other:
        pid = lock(sharer, task, "FOR SHARE")
        lock_in_nested_block(other, task, "FOR SHARE")
        found = lock_of(task)
    assert (found.hold, pids(found)) == (Hold.HELD, {pid})


def test_a_released_savepoint_with_two_possible_owners_is_uncertain(task):
    neighbour = Task.objects.create(task_path="app.tasks.work")
    with session() as other, session() as bystander:
        lock(bystander, neighbour)
        lock_in_nested_block(other, task)
        found = lock_of(task)
    assert (found.hold, found.lockers) == (Hold.UNCERTAIN, ())
    assert found.is_exclusive


def test_a_session_that_began_after_the_lock_cannot_own_it(task):
    neighbour = Task.objects.create(task_path="app.tasks.work")
    with session() as other, session() as bystander:
        pid = lock_in_nested_block(other, task)
        lock(bystander, neighbour)
        found = lock_of(task)
    assert (found.hold, pids(found)) == (Hold.HELD, {pid})


def test_who_waits_for_the_row_tells_who_holds_it(task):
    neighbour = Task.objects.create(task_path="app.tasks.work")
    with session() as other, session() as bystander, session() as waiter:
        lock(bystander, neighbour)
        pid = lock_in_nested_block(other, task)
        thread = threading.Thread(target=lock, args=(waiter, task))
        thread.start()
        wait_until_blocked(waiter.info.backend_pid)
        found = lock_of(task)
        other.rollback()
        thread.join()
    assert (found.hold, pids(found)) == (Hold.HELD, {pid})


# Each subtransaction that shares the row with the session that holds it already makes one more multixact.
COUNT_MULTIXACTS_UP_TO = """
DO $$
BEGIN
    FOR number IN 1..{last} LOOP
        BEGIN
            PERFORM FROM tally FOR SHARE;
            EXIT WHEN (SELECT xmax::text::bigint FROM tally) >= {last};
            RAISE EXCEPTION 'take it back';
        EXCEPTION WHEN raise_exception THEN
        END;
    END LOOP;
END $$
"""


@pytest.fixture
def share_as_multixact():
    """Lets two sessions share a row so that its multixact has the number of somebody's transaction.

    The two kinds of ids are counted apart, and such a number may well come twice.
    """
    with session() as conn:
        conn.execute("CREATE TABLE tally AS SELECT 1 AS id")
        conn.commit()

    def share(number: int, row: str, *sharers: psycopg.Connection) -> None:
        with session() as one, session() as two:
            one.execute("SELECT FROM tally FOR SHARE")
            two.execute(COUNT_MULTIXACTS_UP_TO.format(last=number - 1))
            one.rollback(), two.rollback()  # closing alone would not wait for the server
        for sharer in sharers:
            sharer.execute(f"SELECT FROM {row} FOR SHARE")
        assert sharers[0].execute(f"SELECT xmax::text::bigint FROM {row}").fetchone() == (number,)

    yield share
    with session() as conn:
        conn.execute("DROP TABLE tally")
        conn.commit()


def transaction_of(conn: psycopg.Connection) -> int:
    [number] = conn.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    return number


def test_an_old_locker_is_not_mistaken_for_the_multixact_of_its_number(task, share_as_multixact):
    with session() as old, session() as one, session() as two:
        lock(old, task)
        number = transaction_of(old)
        old.rollback()
        share_as_multixact(number, "tally", one, two)
        assert lock_of(task) is None
        one.rollback(), two.rollback()


def test_a_locker_is_not_mixed_up_with_the_sharers_of_another_row(task, share_as_multixact):
    neighbour = Task.objects.create(task_path="app.tasks.work")
    with session() as holder, session() as one, session() as two:
        pid = lock(holder, task)
        share_as_multixact(transaction_of(holder), f"tasks_task WHERE id = {neighbour.pk}", one, two)
        assert pids(lock_of(task)) == {pid}


ODD_IDS = ["0", "1", "2", "3", "2147483647", "2147483648", "4294967295"]


def test_ids_of_the_wrong_kind_do_not_raise(task):
    with connection.cursor() as cursor:
        cursor.execute("SELECT rowlock_in_progress(x) FROM unnest(%s::text[]::xid[]) AS x", [ODD_IDS])
        assert {bool(row[0]) for row in cursor.fetchall()} == {False}
        cursor.execute("SELECT x, rowlock_multixact_members(x) FROM unnest(%s::text[]::xid[]) AS x", [ODD_IDS])
