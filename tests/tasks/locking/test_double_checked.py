"""Double-checked locking: two looks, one row, one transaction, and what is left when a body fails."""

import contextlib
from importlib import import_module

import pytest
from django.db import connection, transaction
from psycopg.errors import LockNotAvailable
from psycopg.pq import TransactionStatus

from orders.models import Order
from tasks.locking import double_checked
from tasks.locking.report import Outcome
from tests.orders import orders
from tests.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)
module = import_module("tasks.locking.double_checked")  # the package has the function under this name
UNMAILED = Order.objects.filter(shipped_at__isnull=False, shipped_email_sent=False)


def mark(order: Order) -> None:
    Order.objects.filter(pk=order.pk).update(shipped_email_sent=True)


@pytest.fixture(autouse=True)
def one_after_the_other(monkeypatch):
    """Rows in the order of their keys, so that a test can say which one comes next."""
    monkeypatch.setattr(module, "choose_place", lambda keys: 0)


def test_no_work_is_one_query_and_no_transaction(django_assert_num_queries):
    orders.placed(3)
    orders.mailed(3)
    with django_assert_num_queries(1) as seen:
        report = double_checked(UNMAILED).each(mark)
    assert (report.candidates, report.rounds, report.queries) == (0, 1, 1)
    assert "FOR" not in seen.captured_queries[0]["sql"]


def test_each_row_that_meets_the_criteria_is_handled_once():
    orders.placed(2)
    due = orders.shipped(3)
    handled = []
    report = double_checked(UNMAILED).each(lambda order: (handled.append(order.pk), mark(order)))
    assert handled == [order.pk for order in due]
    assert (report.candidates, report.done, report.failed) == (3, 3, 0)
    assert not UNMAILED.exists()


def test_a_row_that_somebody_else_finished_meanwhile_is_left_alone():
    first, second, third = orders.shipped(3)
    handled = []

    def body(order):
        handled.append(order.pk)
        with session(autocommit=True) as other:
            other.execute("UPDATE orders_order SET shipped_email_sent = true WHERE id = %s", [second.pk])
        mark(order)

    report = double_checked(UNMAILED).each(body)
    assert handled == [first.pk, third.pk]
    assert report.outcomes[second.pk] is Outcome.ALREADY_DONE
    assert (report.candidates, report.done, report.already_done, report.skipped_locked) == (3, 2, 1, 0)


def test_the_row_is_locked_in_the_body_and_foreign_keys_to_it_are_not_held_up():
    orders.shipped()

    def body(order):
        with session() as other, pytest.raises(LockNotAvailable):
            other.execute("SELECT FROM orders_order WHERE id = %s FOR NO KEY UPDATE NOWAIT", [order.pk])
        with session() as other:
            other.execute("SELECT FROM orders_order WHERE id = %s FOR KEY SHARE NOWAIT", [order.pk])
        mark(order)

    assert double_checked(UNMAILED).each(body).errors == {}


def test_an_error_in_the_body_rolls_back_that_row_and_the_next_one_goes_on():
    _, second, _ = orders.shipped(3)

    def body(order):
        mark(order)
        if order == second:
            raise ValueError("no such street")

    report = double_checked(UNMAILED).each(body)
    assert list(UNMAILED.all()) == [second]
    assert (report.done, report.failed) == (2, 1)
    assert report.as_dict()["failures"] == [{"id": second.pk, "error": "ValueError: no such street"}]


def test_an_error_of_the_database_in_the_body_is_that_rows_failure_too():
    first, _ = orders.shipped(2)

    def body(order):
        state = "nonsense" if order == first else "sent"
        Order.objects.filter(pk=order.pk).update(email_state=state, shipped_email_sent=True)

    report = double_checked(UNMAILED).each(body)
    assert list(report.errors) == [first.pk]
    assert report.done == 1


def test_a_lock_that_the_body_fails_to_get_is_a_failure_of_the_body():
    first, second = orders.shipped(2)

    def body(order):
        Order.objects.select_for_update(nowait=True).get(pk=second.pk)

    with session() as other:
        other.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE", [second.pk])
        report = double_checked(UNMAILED.filter(pk=first.pk)).each(body, on_locked="report")
    assert (report.failed, report.skipped_locked) == (1, 0)


class Stop(BaseException):
    """What a second signal does: nothing may catch it."""


@pytest.mark.parametrize("error", [None, ValueError, Stop])
def test_no_transaction_is_left_open(error):
    orders.shipped(2)

    def body(order):
        if error:
            raise error

    with contextlib.suppress(Stop):
        double_checked(UNMAILED).each(body)
    assert not connection.in_atomic_block
    assert connection.connection.info.transaction_status == TransactionStatus.IDLE


def test_what_the_body_leaves_for_the_commit_runs_outside_any_transaction():
    orders.shipped(2)
    seen = []

    def body(order):
        mark(order)
        transaction.on_commit(lambda: seen.append((connection.in_atomic_block, UNMAILED.filter(pk=order.pk).exists())))

    assert double_checked(UNMAILED).each(body).done == 2
    assert seen == [(False, False)] * 2


def test_a_body_that_forgets_to_mark_meets_each_row_once_in_a_run():
    orders.shipped(2)
    handled = []
    report = double_checked(UNMAILED).each(lambda order: handled.append(order.pk), max_rounds=5)
    assert (len(handled), report.done, report.rounds) == (2, 2, 2)


def test_a_row_that_failed_is_left_to_the_next_run():
    orders.shipped(2)
    handled = []

    def body(order):
        handled.append(order.pk)
        raise ValueError

    assert double_checked(UNMAILED).each(body, max_rounds=5).failed == len(handled) == 2


def test_the_limit_counts_the_rows_that_were_handled_well_or_not():
    orders.shipped(5)

    def body(order):
        if handled.append(order.pk) or len(handled) == 1:
            raise ValueError
        mark(order)

    handled: list[int] = []
    report = double_checked(UNMAILED).each(body, limit=3)
    assert (report.done, report.failed, len(handled)) == (2, 1, 3)


def test_progress_sees_each_candidate_and_may_end_the_run():
    orders.shipped(5)
    seen = []

    def progress(report):
        seen.append(report.candidates)
        return report.done < 2

    report = double_checked(UNMAILED).each(mark, progress=progress)
    assert (report.done, seen) == (2, [1, 2])


def test_candidates_are_read_in_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 3)
    orders.shipped(7)
    report = double_checked(UNMAILED).each(mark)
    outer, isolation, inner = 3, 1, 2 * 7
    assert (report.done, report.queries) == (7, outer + isolation + inner)


def test_a_stale_list_is_read_again():
    """Three lost races in a row say that somebody has been down this list."""
    orders.shipped(40)

    def body(order):
        mark(order)
        with session(autocommit=True) as other:
            other.execute(
                "UPDATE orders_order SET shipped_email_sent = true WHERE id BETWEEN %s AND %s",
                [order.pk + 1, order.pk + 30],
            )

    report = double_checked(UNMAILED).each(body)
    # The first is done and loses three; 31 to 40 stay on the list, of which the first takes the others away again.
    assert (report.done, report.lost_races, report.already_done) == (2, 6, 6)


def test_the_two_looks_go_to_the_database_of_the_lock(settings):
    orders.shipped()
    settings.DATABASE_ROUTERS = [ReplicaRouter()]
    assert double_checked(UNMAILED.all()).each(mark).done == 1


class ReplicaRouter:
    def db_for_read(self, model, **hints):
        return "replica"

    def db_for_write(self, model, **hints):
        return "default"
