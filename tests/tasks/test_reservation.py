"""Notes of what is reserved: who sees them when, and what becomes of them (the workers: worker/test_reserving.py)."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tasks import presence, reservation
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

WAIT_AND_LOOK = """
SELECT pg_advisory_xact_lock(77) IS NULL, rowlock_reserved(ARRAY[%s]::bigint[], '', 0) AS reserved,
    (SELECT count(*) FROM tasks_reservation) AS seen
"""
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
ROW = "SELECT status, attempt, claimed_by FROM tasks_task WHERE id = %s"


def write_note(database, ids, *, worker_id="w1", slot=1):
    database.connection.execute(
        "INSERT INTO tasks_reservation (worker_id, slot, queue_name, first_id, members, reserved_at) "
        "VALUES (%s, %s, 'default', %s, %s, now())",
        [worker_id, slot, min(ids), reservation.members(ids)],
    )


def rows(database, ids):
    return [tuple(database.rows(ROW, id)[0]) for id in ids]


def test_a_note_is_seen_that_was_written_while_the_statement_ran(database):
    with psycopg.connect(database.url, autocommit=True) as claimer, ThreadPoolExecutor(1) as beside:
        database.connection.execute("SELECT pg_advisory_lock(77)")
        looking = beside.submit(lambda: claimer.execute(WAIT_AND_LOOK, [7]).fetchone())
        wait_until(lambda: database.value(WAITS) == 1)
        write_note(database, [7])
        database.connection.execute("SELECT pg_advisory_unlock(77)")
        _, reserved, seen = looking.result(timeout=30)
    assert (reserved, seen) == ([7], 0), "though the statement itself does not see it"


@pytest.mark.parametrize(
    ("ids", "asked", "found"),
    [
        ([5, 9, 20], [5, 6, 9, 20, 21], [5, 9, 20]),
        ([5], [-3, 4, 5, 12, 13, 2**62], [5]),
        ([2**40, 2**40 + 9], [5, 2**40 + 9], [2**40 + 9]),
    ],
)
def test_it_is_told_which_are_noted(database, ids, asked, found):
    write_note(database, ids)
    assert database.value("SELECT rowlock_reserved(%s::bigint[], '', 0)", asked) == found
    assert database.value("SELECT rowlock_reserved(%s::bigint[], 'w1', 1)", asked) == [], "its own note"
    assert database.value("SELECT rowlock_reserved(%s::bigint[], 'w1', 2)", asked) == found, "of its other batch"
    assert reservation.ids_of(min(ids), reservation.members(ids)) == ids


def test_what_has_begun_is_claimed_and_the_rest_let_go(database):
    ids = database.enqueue(handlers.quick, count=4)
    write_note(database, ids)
    assert reservation.settle(database.connection, ["w1"], ids[:2])
    assert rows(database, ids) == 2 * [("PROCESSING", 1, "w1")] + 2 * [("READY", 0, None)]
    assert database.rows("SELECT * FROM tasks_reservation") == []


def test_what_is_done_or_gone_is_left_as_it_is(database):
    ids = database.enqueue(handlers.quick, count=3)
    write_note(database, ids)
    database.connection.execute("DELETE FROM tasks_task WHERE id = %s", [ids[0]])
    database.connection.execute(
        "UPDATE tasks_task SET status = 'CANCELLED', finished_at = now() WHERE id = %s", [ids[1]]
    )
    assert reservation.settle(database.connection, ["w1"])
    assert rows(database, ids[1:]) == [("CANCELLED", 0, None), ("PROCESSING", 1, "w1")]


def test_what_is_locked_stays_noted(database):
    ids = database.enqueue(handlers.quick, count=3)
    write_note(database, ids)
    with psycopg.connect(database.url) as other:
        other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [ids[1]])
        assert not reservation.settle(database.connection, ["w1"])
        assert rows(database, ids) == [("PROCESSING", 1, "w1"), ("READY", 0, None), ("PROCESSING", 1, "w1")]
        assert database.value("SELECT rowlock_reserved(%s::bigint[], '', 0)", ids) == [ids[1]]
    assert reservation.settle(database.connection, ["w1"])
    assert rows(database, ids[1:2]) == [("PROCESSING", 1, "w1")]


def test_a_note_that_is_being_written_is_settled_later(database):
    ids = database.enqueue(handlers.quick, count=1)
    write_note(database, ids)
    with psycopg.connect(database.url) as other:
        other.execute("SELECT FROM tasks_reservation FOR UPDATE")
        assert not reservation.settle(database.connection, ["w1"])
    assert reservation.settle(database.connection, ["w1"])


def test_only_what_is_named_is_settled(database):
    ids = database.enqueue(handlers.quick, count=2)
    write_note(database, ids[:1])
    write_note(database, ids[1:], worker_id="w2")
    assert reservation.settle(database.connection, ["w2"])
    assert rows(database, ids) == [("READY", 0, None), ("PROCESSING", 1, "w2")]


def test_who_has_left_a_note_is_known(database):
    """A sweep asks for those who may hold something."""
    write_note(database, [1], worker_id="gone")
    assert presence.known_ids(database.connection) == ["gone"]
