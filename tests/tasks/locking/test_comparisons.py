"""The two forms beside double-checked locking: batches under one lock, and no lock at all."""

import pytest
from django.db import connection, transaction

from orders.models import Order
from tasks.locking import double_checked, locked_batches, update_each
from tests.orders import orders
from tests.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)
UNMAILED = Order.objects.filter(shipped_at__isnull=False, shipped_email_sent=False)


def mark_all(rows: list[Order]) -> None:
    Order.objects.filter(pk__in=[order.pk for order in rows]).update(shipped_email_sent=True)


class TestBatches:
    def test_one_read_and_one_write_for_each_batch(self):
        orders.shipped(25)
        report = locked_batches(UNMAILED, mark_all, size=10)
        isolation, reads, writes = 1, 4, 3
        assert (report.done, report.queries) == (25, isolation + reads + writes)
        assert not UNMAILED.exists()

    def test_it_costs_a_fraction_of_the_statements_of_one_by_one(self):
        orders.shipped(25)
        batched = locked_batches(UNMAILED, mark_all).queries
        Order.objects.update(shipped_email_sent=False)
        one_by_one = double_checked(UNMAILED).each(lambda order: mark_all([order])).queries
        assert (batched, one_by_one) == (4, 52)

    def test_a_row_that_fails_takes_its_batch_with_it(self):
        rows = orders.shipped(6)

        def body(batch):
            mark_all(batch)
            if rows[1] in batch:
                raise ValueError

        report = locked_batches(UNMAILED, body, size=3)
        assert (report.failed, report.done) == (3, 3)
        assert list(UNMAILED.all()) == rows[:3]

    def test_every_row_of_the_batch_is_locked_until_the_last_is_done(self):
        rows = orders.shipped(3)

        def body(batch):
            with session() as other:
                seen.append(other.execute("SELECT FROM orders_order FOR UPDATE SKIP LOCKED").rowcount)

        seen: list[int] = []
        locked_batches(UNMAILED.filter(pk__in=[rows[0].pk, rows[1].pk]), body)
        assert seen == [1]

    def test_rows_that_somebody_holds_are_not_even_seen(self):
        held, *_ = orders.shipped(3)
        with session() as other, connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '1s'")
            other.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE", [held.pk])
            report = locked_batches(UNMAILED, mark_all)
            cursor.execute("RESET lock_timeout")
        assert (report.candidates, report.done) == (2, 2)

    def test_the_limit_cuts_the_last_batch(self):
        orders.shipped(9)
        assert locked_batches(UNMAILED, mark_all, size=4, limit=6).done == 6
        assert UNMAILED.count() == 3

    def test_the_limit_cuts_the_only_batch(self):
        orders.shipped(10)
        assert locked_batches(UNMAILED, mark_all, size=100, limit=3).done == 3
        assert UNMAILED.count() == 7

    def test_it_refuses_an_open_transaction_too(self):
        with pytest.raises(RuntimeError, match="inside a transaction"), transaction.atomic():
            locked_batches(UNMAILED, mark_all)


class TestIdempotent:
    def test_only_the_named_columns_are_written(self):
        [order] = orders.placed(customer_email="Anna@Example.test")

        def lowered(row):
            Order.objects.filter(pk=order.pk).update(email_reply="written meanwhile")
            return {"customer_email": row.customer_email.lower()}

        report = update_each(Order.objects.filter(customer_email__contains="A"), lowered)
        assert report.done == 1
        stored = Order.objects.get()
        assert (stored.customer_email, stored.email_reply) == ("anna@example.test", "written meanwhile")

    def test_save_would_write_the_stale_field_back(self):
        """The weak spot that `update` avoids, shown."""
        orders.placed(customer_email="Anna@Example.test")
        order = Order.objects.get()
        Order.objects.update(email_reply="written meanwhile")
        order.customer_email = order.customer_email.lower()
        order.save()
        assert Order.objects.get().email_reply == ""

    def test_a_row_that_somebody_else_did_is_left_as_it_is(self):
        [order] = orders.shipped()

        def changes(row):
            with session(autocommit=True) as other:
                other.execute("UPDATE orders_order SET shipped_email_sent = true, email_reply = 'theirs'")
            return {"email_reply": "ours"}

        report = update_each(UNMAILED, changes)
        assert (report.done, report.already_done) == (0, 1)
        order.refresh_from_db()
        assert order.email_reply == "theirs"

    def test_a_row_that_fails_and_the_limit(self):
        first, *_ = orders.shipped(4)

        def changes(row):
            return {"email_attempts": 1 // (row.pk - first.pk)}

        report = update_each(UNMAILED, changes, limit=3)
        assert (report.done, report.failed, list(report.errors)) == (2, 1, [first.pk])

    def test_no_lock_is_held_and_no_transaction_is_open(self):
        orders.shipped()
        seen = []
        update_each(UNMAILED, lambda row: seen.append(connection.in_atomic_block) or {"email_attempts": 1})
        assert seen == [False]
