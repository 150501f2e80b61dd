"""Criteria that look into other tables: the statement that locks saw them before the former holder let go."""

import threading
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from django.db.models import Exists, OuterRef

from orders.models import Account, Entry
from tasks.locking import double_checked
from tests.sessions import session, wait_until_blocked
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
CRITERIA = {
    "join": lambda: Account.objects.filter(entries__isnull=True),
    "exists": lambda: Account.objects.filter(~Exists(Entry.objects.filter(account=OuterRef("pk")))),
    "in": lambda: Account.objects.exclude(pk__in=Entry.objects.values("account")),
    "annotation": lambda: Account.objects.annotate(
        has_entry=Exists(Entry.objects.filter(account=OuterRef("pk")))
    ).filter(has_entry=False),
}


@pytest.fixture
def account() -> Account:
    return Account.objects.create(owner=User.objects.create_user("anna"))


def open_with_one_cent(account: Account) -> None:
    Entry.objects.create(account=account, amount=Decimal("0.01"), kind=Entry.Kind.DEPOSIT)


@pytest.mark.parametrize("criteria", CRITERIA.values(), ids=CRITERIA)
def test_what_the_former_holder_wrote_elsewhere_is_seen(account, criteria):
    """It locks the account and writes an entry, as our body does: the account's own row never changes."""
    reports, pids = [], []

    def run():
        connection.ensure_connection()
        pids.append(connection.connection.info.backend_pid)
        reports.append(double_checked(criteria()).each(open_with_one_cent, on_locked="wait", wait_seconds=10))
        connections.close_all()

    with session() as other:
        other.execute("SELECT FROM orders_account WHERE id = %s FOR NO KEY UPDATE", [account.pk])
        other.execute("INSERT INTO orders_entry (account_id, amount, kind) VALUES (%s, 0.01, 'deposit')", [account.pk])
        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: pids)
        wait_until_blocked(pids[0])
        other.commit()
        thread.join()
    assert (reports[0].done, reports[0].already_done) == (0, 1)
    assert Entry.objects.count() == 1


@pytest.mark.parametrize("criteria", CRITERIA.values(), ids=CRITERIA)
def test_a_row_that_still_meets_them_is_handled(account, criteria):
    assert double_checked(criteria()).each(open_with_one_cent).done == 1


def test_a_join_that_repeats_a_row_hands_it_out_once(account):
    open_with_one_cent(account)
    open_with_one_cent(account)
    handled = []
    report = double_checked(Account.objects.filter(entries__amount__gt=0)).each(handled.append)
    assert (handled, report.candidates, report.lost_races) == ([account], 1, 0)


def test_of_can_lock_the_joined_row_too_or_leave_it_free(account):
    accounts = double_checked(Account.objects.select_related("owner"))

    def can_lock_the_owner(_):
        with session() as other:
            free = other.execute("SELECT FROM auth_user FOR NO KEY UPDATE SKIP LOCKED").rowcount
            other.rollback()
        seen.append(bool(free))

    seen: list[bool] = []
    accounts.each(can_lock_the_owner)
    accounts.each(can_lock_the_owner, of=("self", "owner"))
    assert seen == [True, False]


def test_criteria_on_the_rows_own_columns_are_asked_no_third_time(account):
    outer, isolation, inner = 1, 1, 1
    report = double_checked(Account.objects.filter(balance=0)).each(lambda account: None)
    assert report.queries == outer + isolation + inner
