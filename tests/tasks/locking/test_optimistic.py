"""Compare-and-swap by version: the second of two writers learns that the row has moved on."""

import pytest
from django.db import connection
from django.db.models import F

from orders.models import Order
from tasks.exceptions import StaleVersion
from tasks.locking import update_if_unchanged
from tests.orders import orders

pytestmark = pytest.mark.django_db


@pytest.fixture
def order() -> Order:
    return orders.placed()[0]


def test_the_changes_are_written_and_the_instance_follows(order, django_assert_num_queries):
    with django_assert_num_queries(1):
        update_if_unchanged(order, customer_email="anna@example.test")
    assert (order.customer_email, order.version) == ("anna@example.test", 2)
    stored = Order.objects.get()
    assert (stored.customer_email, stored.version) == ("anna@example.test", 2)


def test_the_second_of_two_writers_is_refused(order):
    theirs = Order.objects.get()
    update_if_unchanged(theirs, customer_email="theirs@example.test")
    with pytest.raises(StaleVersion, match="is not at version 1 any more"):
        update_if_unchanged(order, customer_email="ours@example.test")
    assert Order.objects.get().customer_email == "theirs@example.test"
    assert (order.customer_email, order.version) == ("customer0@example.test", 1)


def test_a_write_from_outside_the_orm_counts(order):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE orders_order SET email_reply = 'noted' WHERE id = %s", [order.pk])
    with pytest.raises(StaleVersion):
        update_if_unchanged(order, customer_email="ours@example.test")


def test_a_row_that_is_gone(order):
    Order.objects.all().delete()
    with pytest.raises(StaleVersion, match="changed or deleted"):
        update_if_unchanged(order, customer_email="ours@example.test")


def test_no_other_field_is_written_back(order):
    order.email_reply = "stale"
    update_if_unchanged(order, customer_email="anna@example.test")
    assert Order.objects.get().email_reply == ""


def test_an_expression_would_be_computed_from_a_row_that_nobody_has_seen(order):
    with pytest.raises(TypeError, match="not expressions, for email_attempts"):
        update_if_unchanged(order, email_attempts=F("email_attempts") + 1)


def test_two_updates_of_one_instance_follow_each_other(order):
    update_if_unchanged(order, email_attempts=1)
    update_if_unchanged(order, email_attempts=2)
    assert Order.objects.get().version == 3
