"""Several processes share the rows, and each starts at a place of its own so that they do not chase each other.

How many races that saves is measured, not asserted: `python -m tests.benchmarks.lost_races`.
"""

from importlib import import_module

import pytest
from django.db import connection

from orders.models import Order
from tests.commands import database_url
from tests.orders import orders
from tests.sessions import session
from tests.tasks.locking.sharing import share, total

pytestmark = pytest.mark.django_db(transaction=True)
module = import_module("tasks.locking.double_checked")  # the package has the function under this name
UNMAILED = Order.objects.filter(shipped_at__isnull=False, shipped_email_sent=False)
ROWS, PROCESSES = 200, 4


def test_each_row_is_handled_once_and_by_all_of_the_processes():
    """How many rows each gets is for the machine to decide."""
    orders.shipped(ROWS)
    with connection.cursor() as cursor:  # as a table that has been there for a while is
        cursor.execute("ANALYZE orders_order")
    reports = share(database_url(), PROCESSES, "own", meet=True)
    assert total(reports, "done") == ROWS
    assert not UNMAILED.exists()
    assert all(report["done"] for report in reports), "one has done nothing"
    # All four at the same one of 200 places: once in eight million runs.
    assert len({report["first_place"] for report in reports}) > 1, "all began at the same place"


@pytest.fixture
def places(monkeypatch):
    """The places that runs choose, one after the other, and the last one again and again."""
    chosen: list[int] = []
    monkeypatch.setattr(module, "choose_place", lambda keys: chosen.pop(0) if len(chosen) > 1 else chosen[0])
    return chosen


def test_a_run_begins_at_its_place_and_goes_on_behind_it(places):
    keys = [order.pk for order in orders.shipped(4)]
    places += [2]
    assert handled_by_a_run() == [keys[2], keys[3], keys[0], keys[1]]


def test_who_lost_a_race_goes_on_at_another_place(places):
    """Whoever was first there goes on behind it, so that is where the next races would be lost."""
    keys = [order.pk for order in orders.shipped(6)]
    places += [1, 4]
    with session() as other:
        other.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE", [keys[1]])
        handled = handled_by_a_run()
    assert handled[0] == keys[5]
    assert sorted(handled) == [keys[0], *keys[2:]]


def test_every_place_is_chosen_by_somebody():
    chosen = {module.choose_place([1, 2, 3]) for _ in range(500)}
    assert chosen == {0, 1, 2}
    assert module.choose_place([]) == 0


def handled_by_a_run() -> list[int]:
    """The keys of the rows that a run gets, in its order."""
    handled: list[int] = []

    def mark(order: Order) -> None:
        handled.append(order.pk)
        Order.objects.filter(pk=order.pk).update(shipped_email_sent=True)

    module.double_checked(UNMAILED).each(mark)
    return handled
