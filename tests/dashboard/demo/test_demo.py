"""The demo's data: loaded once, in queues and orders of their own, harmless, and one of every trouble."""

import logging

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now

from dashboard import demo, tasks
from dashboard.demo import director
from orders import accounts
from orders.models import Account, Entry, Order
from tasks.models import Queue, Task
from tasks.schedule import expectations
from tasks.testing import run_due

pytestmark = pytest.mark.django_db


def test_it_is_loaded_once_whatever_becomes_of_its_rows():
    assert director.load_once() == Task.objects.count() > 30
    Task.objects.all().delete()
    Order.objects.all().delete()
    assert director.load_once() == 0
    assert not Order.objects.exists()


def test_it_keeps_to_queues_and_orders_of_its_own():
    director.load_once()
    queues = {*Task.objects.values_list("queue_name", flat=True), *Queue.objects.values_list("name", flat=True)}
    assert all(name.startswith(demo.PREFIX) for name in queues)
    assert not Order.objects.exclude(customer_email__endswith=demo.DOMAIN).exists()


def test_twelve_orders_are_to_be_mailed_and_the_fate_of_one_is_unknown():
    director.load_once()
    assert Order.objects.to_mail().count() == 12
    assert Order.objects.of_unknown_fate().count() == 1


def test_its_accounts_have_money_and_entries_that_add_up():
    director.load_once()
    owners = set(User.objects.values_list("username", "email", "is_active"))
    assert owners == {(f"demo-{name}", f"{name}@example.test", False) for name in director.OWNERS}
    assert sorted(Account.objects.values_list("balance", flat=True)) == [75, 145, 235]
    assert Entry.objects.count() == 6
    assert accounts.mismatches() == []


def test_a_cron_line_is_overdue():
    director.load_once()
    assert [one.name for one in expectations.overdue()] == [demo.NIGHTLY]


def test_its_payouts_wait_for_a_person():
    director.load_once()
    assert Queue.objects.get(name=demo.PAYOUTS).recovery == Queue.Recovery.ASK


def test_it_leaves_one_group_of_failures_and_a_held_key():
    director.load_once()
    run_due()
    Task.objects.filter(status="READY", queue_name=demo.MAIL).update(run_after=Now())  # as if their backoff were over
    run_due()
    failed = Task.objects.filter(status="FAILED").values_list("task_path", flat=True)
    assert list(failed) == ["dashboard.tasks.charge_card"] * director.DECLINED
    behind = Task.objects.filter(task_path="dashboard.tasks.write_invoice", status="READY").order_by("id")
    assert [task.attempt for task in behind] == [1, 0, 0, 0]


def test_its_failures_are_not_news_but_other_ones_are(caplog):
    logger = logging.getLogger("django_tasks" if tasks.FRAMEWORK == "django_tasks" else "django.tasks")
    for error in (tasks.CardDeclined("staged"), ValueError("real")):
        try:
            raise error
        except (tasks.Staged, ValueError):
            logger.exception("Task failed")
    assert [record.exc_info[1].args for record in caplog.records] == [("real",)]


@pytest.mark.parametrize(("below", "primes"), [(-5, 0), (0, 0), (1, 0), (2, 0), (3, 1), (1000, 168), (10**9, 9592)])
def test_its_arithmetic_is_right_and_bounded(below, primes):
    assert tasks.count_primes.func(below) == primes
