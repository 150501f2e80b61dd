"""What a run does about a row that somebody else holds: skip it, report it, wait for it, come back to it."""

import threading
import time

import pytest
from django.db import connection, connections

from orders.models import Order
from tasks.locking import double_checked
from tasks.locking.double_checked import UNTIL_EMPTY
from tests.orders import orders
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
UNMAILED = Order.objects.filter(shipped_at__isnull=False, shipped_email_sent=False)
LOCK = "SELECT FROM orders_order WHERE id = %s FOR UPDATE"


def mark(order: Order) -> None:
    Order.objects.filter(pk=order.pk).update(shipped_email_sent=True)


@pytest.mark.parametrize("on_locked", ["skip", "report", "wait"])
def test_a_held_row_is_left_and_counted_and_the_others_are_done(on_locked):
    held, _ = orders.shipped(2)
    with session() as other:
        other.execute(LOCK, [held.pk])
        report = double_checked(UNMAILED).each(mark, on_locked=on_locked, wait_seconds=0.2)
    assert (report.done, report.skipped_locked, report.already_done) == (1, 1, 0)
    assert list(UNMAILED.all()) == [held]


@pytest.mark.parametrize(("on_locked", "wait_seconds"), [("skip", 25.0), ("report", 25.0), ("wait", 0.5)])
def test_only_wait_waits(on_locked, wait_seconds):
    """The others would wait for far longer than a busy machine takes."""
    [held] = orders.shipped()
    with session() as other:
        other.execute(LOCK, [held.pk])
        began = time.monotonic()
        double_checked(UNMAILED).each(mark, on_locked=on_locked, wait_seconds=wait_seconds)
        took = time.monotonic() - began
    assert (took >= wait_seconds) == (on_locked == "wait")


@pytest.fixture
def waiting_run():
    """A run in a thread of its own, in the mode that waits: its backend's pid, and its report."""

    class Run:
        def __init__(self):
            self.thread = threading.Thread(target=self.go)
            self.pid = self.report = None

        def go(self):
            connection.ensure_connection()
            self.pid = connection.connection.info.backend_pid
            self.report = double_checked(UNMAILED).each(mark, on_locked="wait", wait_seconds=10)
            connections.close_all()

        def blocked_by(self):
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_blocking_pids(%s)", [self.pid])
                return cursor.fetchone()[0]

    return Run()


def test_wait_gets_the_row_when_its_holder_lets_go(waiting_run):
    [held] = orders.shipped()
    with session() as other:
        other.execute(LOCK, [held.pk])
        waiting_run.thread.start()
        wait_until(lambda: waiting_run.pid and waiting_run.blocked_by() == [other.info.backend_pid])
        other.rollback()
        waiting_run.thread.join()
    assert (waiting_run.report.done, waiting_run.report.lost_races) == (1, 0)


def test_wait_leaves_a_row_that_its_holder_has_done(waiting_run):
    [held] = orders.shipped()
    with session() as other:
        other.execute("UPDATE orders_order SET shipped_email_sent = true WHERE id = %s", [held.pk])
        waiting_run.thread.start()
        wait_until(lambda: waiting_run.pid and waiting_run.blocked_by() == [other.info.backend_pid])
        other.commit()
        waiting_run.thread.join()
    assert (waiting_run.report.done, waiting_run.report.already_done) == (0, 1)


def test_rounds_come_back_to_a_row_until_there_is_none_left():
    held, _ = orders.shipped(2)
    with session() as other:
        other.execute(LOCK, [held.pk])

        def let_go_after_the_second_look(report):
            if report.lost_races == 2:
                other.rollback()

        report = double_checked(UNMAILED).each(mark, max_rounds=UNTIL_EMPTY, progress=let_go_after_the_second_look)
    assert (report.candidates, report.done, report.skipped_locked) == (2, 2, 0)
    assert (report.rounds, report.lost_races) == (4, 2)


def test_rounds_are_bounded_and_say_what_is_left():
    held, _ = orders.shipped(2)
    with session() as other:
        other.execute(LOCK, [held.pk])
        report = double_checked(UNMAILED).each(mark, max_rounds=3)
    assert (report.candidates, report.done, report.skipped_locked) == (2, 1, 1)
    assert (report.rounds, report.lost_races) == (3, 3)


def test_a_row_that_was_held_and_then_done_by_its_holder_is_not_counted_as_left():
    held, _ = orders.shipped(2)
    with session() as other:
        other.execute("UPDATE orders_order SET shipped_email_sent = true WHERE id = %s", [held.pk])

        def commit(report):
            if report.candidates == 2:
                other.commit()

        report = double_checked(UNMAILED).each(mark, progress=commit)
    assert (report.done, report.skipped_locked, report.already_done) == (1, 0, 1)


def test_rows_held_by_the_hundred_cost_few_looks_at_the_list():
    """Reading again does not help while somebody holds them; patience doubles each time."""
    rows = orders.shipped(200)
    with session() as other:
        other.execute("SELECT FROM orders_order FOR UPDATE")
        report = double_checked(UNMAILED).each(mark)
    outer, isolation, last_look = report.queries - len(rows) - 2, 1, 1
    assert (report.skipped_locked, isolation, last_look) == (200, 1, 1)
    assert outer <= 8
