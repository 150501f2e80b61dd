"""`ordered_by_commit`: of two enqueuers of one key the second draws its id when the first one's row is visible."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import OperationalError, connection, transaction

from tasks.framework import enqueue
from tasks.models import Task
from tests.sessions import session, wait_until_blocked
from tests.tasks import handlers
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PLACE = "SELECT hashtext(%(key)s) & 1023"
SQL_ENQUEUE = "SELECT rowlock_enqueue('any.task', ordering_key => %(key)s, ordered_by_commit => true)"
HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND pid = pg_backend_pid()"
SOON = "SET lock_timeout = '50ms'"
WAITING = "SELECT count(*) FROM pg_locks WHERE relation = 'tasks_task'::regclass AND NOT granted"


def place(key: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(PLACE, {"key": key})
        return cursor.fetchone()[0]


def would_wait(key: str) -> bool:
    """Whether a program that enqueues through SQL has to wait for somebody."""
    with session(autocommit=True) as other:
        other.execute(SOON)
        try:
            other.execute(SQL_ENQUEUE, {"key": key})
        except psycopg.errors.LockNotAvailable:
            return True
    return False


def test_f07_enqueuers_of_one_key_wait_for_the_first_one_s_commit():
    with transaction.atomic():
        handlers.by_account_and_commit.enqueue("anna")
        assert would_wait("anna")
        assert not would_wait("bert")
    assert not would_wait("anna")


def test_bulk_enqueueing_takes_its_keys_too():
    with transaction.atomic():
        handlers.by_account_and_commit.enqueue_many([(("anna",), {}), (("bert",), {})])
        assert would_wait("anna")
        assert would_wait("bert")


def test_the_backend_waits_for_programs_that_enqueue_through_sql():
    with session() as other:
        other.execute(SQL_ENQUEUE, {"key": "anna"})
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises(OperationalError, match="lock timeout"):
                handlers.by_account_and_commit.enqueue("anna")
            transaction.set_rollback(True)
    assert not Task.objects.exists()


def enqueue_in_a_thread() -> None:
    handlers.by_account_and_commit.enqueue("anna")
    connection.close()


def test_outside_a_transaction_the_lock_is_held_until_the_row_is_there():
    with ThreadPoolExecutor() as pool, session() as blocker, session() as other:
        blocker.execute("LOCK TABLE tasks_task IN SHARE MODE")
        enqueueing_thread = pool.submit(enqueue_in_a_thread)
        wait_until(lambda: other.execute(WAITING).fetchone() == (1,))
        other.execute(SOON)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(enqueue.LOCK_KEYS, {"keys": ["anna"]})
        blocker.rollback()
        enqueueing_thread.result(timeout=10)
    assert Task.objects.get().ordering_key == "anna"
    assert not would_wait("anna")


def test_other_tasks_take_no_lock():
    with transaction.atomic():
        handlers.by_account.enqueue("anna")
        handlers.by_account_and_commit.enqueue_many([((None,), {})])
        with connection.cursor() as cursor:
            cursor.execute(HELD)
            # The announcement of new tasks holds one of its own (migration 0003).
            assert cursor.fetchone()[0] <= 1


def test_any_number_of_keys_takes_a_bounded_number_of_locks():
    with transaction.atomic():
        handlers.by_account_and_commit.enqueue_many(((f"key {number}",), {}) for number in range(20_000))
        with connection.cursor() as cursor:
            cursor.execute(HELD)
            assert 1000 < cursor.fetchone()[0] <= 1025


def test_f06_locks_are_taken_in_one_order_by_everybody():
    """Whoever waits for the first key holds none of the later ones: no two enqueuers can deadlock."""
    low, *others = sorted((f"key {number}" for number in range(30)), key=place)
    with ThreadPoolExecutor() as pool, session() as holder, session() as waiter:
        holder.execute(enqueue.LOCK_KEYS, {"keys": [low]})
        blocked = pool.submit(waiter.execute, enqueue.LOCK_KEYS, {"keys": [*others, low]})
        wait_until_blocked(waiter.info.backend_pid)
        assert not any(would_wait(key) for key in others)
        holder.rollback()
        blocked.result(timeout=10)
