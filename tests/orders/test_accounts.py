"""Deposits, withdrawals and transfers: both strategies, alone and against each other."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, connections, transaction

from orders import accounts
from orders.accounts import AccountError, BalanceTooLarge, InsufficientFunds, InvalidAmount, SameAccount, UnknownAccount
from orders.models import Account, Entry
from tasks.exceptions import Busy
from tests.commands import database_url
from tests.sessions import session, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)
STRATEGIES = ("pessimistic", "optimistic")
HUNDRED = Decimal(100)
LOCK = "SELECT 1 FROM orders_account WHERE id = %s FOR UPDATE"


@pytest.fixture
def owner() -> User:
    return User.objects.create_user("anna")


@pytest.fixture
def account(owner: User) -> Account:
    return opened(owner)


def opened(owner: User, balance: Decimal = HUNDRED) -> Account:
    account = Account.objects.create(owner=owner)
    accounts.deposit(account.pk, balance)
    return account


def balance_of(account: Account) -> Decimal:
    return Account.objects.get(pk=account.pk).balance


@pytest.fixture
def in_thread() -> Iterator[Callable[..., Any]]:
    """Run a function in a thread of its own, with its own connection; gives the future."""
    with ThreadPoolExecutor(8) as pool:

        def submit(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            def work() -> Any:
                try:
                    return function(*args, **kwargs)
                finally:
                    connections.close_all()

            return pool.submit(work)

        yield submit


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_deposit_and_withdrawal_at_once_lose_nothing(account: Account, strategy: accounts.Strategy, in_thread) -> None:
    start = threading.Barrier(2)

    def at_once(operation: Callable[..., Any], amount: Decimal) -> None:
        start.wait(10)
        operation(account.pk, amount, strategy=strategy)

    futures = [
        in_thread(at_once, accounts.deposit, Decimal(50)),
        in_thread(at_once, accounts.withdraw, Decimal(30)),
    ]
    for future in futures:
        future.result(20)
    assert balance_of(account) == 120


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_waiting_operation_decides_on_what_the_other_left(
    account: Account, strategy: accounts.Strategy, in_thread
) -> None:
    """The article's loss, made certain: B has decided on 100 when A commits."""
    with session() as other:
        other.execute("UPDATE orders_account SET balance = balance - 30 WHERE id = %s", [account.pk])
        pid_box: list[int] = []

        def deposit() -> accounts.Change:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                pid_box.append(cursor.fetchone()[0])
            return accounts.deposit(account.pk, Decimal(50), strategy=strategy)

        future = in_thread(deposit)
        while not pid_box:
            future.done()
        wait_until_blocked(pid_box[0])
        other.commit()
    change = future.result(20)
    assert balance_of(account) == 120
    assert change.retries == (1 if strategy == "optimistic" else 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_transfer_moves_both_sides_and_writes_both_entries(
    owner: User, account: Account, strategy: accounts.Strategy
) -> None:
    other = opened(owner, Decimal(1))
    change = accounts.transfer(account.pk, other.pk, Decimal("30.50"), strategy=strategy)
    assert change.balances == {account.pk: Decimal("69.50"), other.pk: Decimal("31.50")}
    entries = Entry.objects.filter(kind="transfer")
    assert {entry.account_id: entry.amount for entry in entries} == {
        account.pk: Decimal("-30.50"),
        other.pk: Decimal("30.50"),
    }
    assert len({entry.transfer_id for entry in entries}) == 1
    assert accounts.mismatches() == []


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (lambda a, s: accounts.withdraw(a, Decimal("100.01"), strategy=s), InsufficientFunds),
        (lambda a, s: accounts.deposit(a, Decimal("9999999999.99"), strategy=s), BalanceTooLarge),
        (lambda a, s: accounts.deposit(a + 1000, Decimal(1), strategy=s), UnknownAccount),
        (lambda a, s: accounts.transfer(a, a + 1000, Decimal(1), strategy=s), UnknownAccount),
        (lambda a, s: accounts.transfer(a, a, Decimal(1), strategy=s), SameAccount),
    ],
)
def test_a_refused_operation_changes_nothing(
    account: Account, strategy: accounts.Strategy, operation: Callable[..., Any], error: type[AccountError]
) -> None:
    with pytest.raises(error):
        operation(account.pk, strategy)
    assert balance_of(account) == HUNDRED
    assert Entry.objects.count() == 1


@pytest.mark.parametrize("amount", ["0", "-1", "NaN", "sNaN", "Infinity", "0.001", "1E+11", "1E+40"])
def test_amounts_that_are_no_money_are_refused(account: Account, amount: str) -> None:
    with pytest.raises(InvalidAmount):
        accounts.deposit(account.pk, Decimal(amount))
    assert balance_of(account) == HUNDRED


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_whole_number_is_money(account: Account, strategy: accounts.Strategy) -> None:
    assert accounts.withdraw(account.pk, 30, strategy=strategy).balances == {account.pk: Decimal("70.00")}
    assert accounts.deposit(account.pk, 50, strategy=strategy).balances == {account.pk: Decimal("120.00")}


@pytest.mark.parametrize("amount", [0, -1, 10**40, 1.5, "1", True, None])
def test_what_has_no_exact_cents_is_no_money(account: Account, amount: Any) -> None:
    with pytest.raises(InvalidAmount):
        accounts.deposit(account.pk, amount)


def test_the_database_itself_refuses_a_negative_balance(account: Account) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Account.objects.filter(pk=account.pk).update(balance=-1)


def test_busy_names_the_holder(account: Account) -> None:
    with session("rowlock:test:holder") as other:
        other.execute(LOCK, [account.pk])
        pid = other.info.backend_pid
        with pytest.raises(Busy, match=rf"Held by pid {pid} \(rowlock:test:holder"):
            accounts.deposit(account.pk, Decimal(1), nowait=True)
    assert balance_of(account) == HUNDRED


def test_the_owner_stays_editable_while_the_account_is_locked(account: Account) -> None:
    with transaction.atomic():
        accounts.deposit(account.pk, Decimal(1))
        with session() as other:
            other.execute("SET lock_timeout = '5s'")
            other.execute("UPDATE auth_user SET first_name = 'Anna' WHERE id = %s", [account.owner_id])
            other.commit()


def test_a_write_from_outside_makes_the_swap_start_again(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw SQL that does not touch `version`: the trigger makes it count."""
    read = accounts._read
    outside = [1]

    def read_then_somebody_writes(*args: Any) -> list[Account]:
        found = read(*args)
        if outside:
            outside.pop()
            with session() as other:
                other.execute("UPDATE orders_account SET balance = balance + 5 WHERE id = %s", [account.pk])
                other.commit()
        return found

    monkeypatch.setattr(accounts, "_read", read_then_somebody_writes)
    change = accounts.withdraw(account.pk, Decimal(10), strategy="optimistic")
    assert change.retries == 1
    assert balance_of(account) == Decimal(95)


def test_random_transfers_by_both_strategies_from_8_processes_keep_the_sum(owner: User) -> None:
    ids = [str(opened(owner).pk) for _ in range(5)]
    environment = {**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    argv = [sys.executable, "-m", "tests.orders.shuffle_money", "8", "60", *ids]
    said = subprocess.run(argv, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout
    refused = [int(line) for line in said.splitlines()]
    assert len(refused) == 8
    assert sum(Account.objects.values_list("balance", flat=True)) == 500
    assert accounts.mismatches() == []
    assert Entry.objects.filter(kind="transfer").count() == 2 * (8 * 60 - sum(refused))


def test_the_ledger_check_finds_a_balance_changed_past_it(account: Account) -> None:
    Account.objects.filter(pk=account.pk).update(balance=Decimal(70))
    assert accounts.mismatches() == [accounts.Mismatch(account.pk, Decimal(70), HUNDRED)]


def test_deadlocks_cannot_arise_from_opposite_transfers(owner: User, in_thread) -> None:
    first, second = opened(owner).pk, opened(owner).pk
    with session() as watch:
        before = deadlocks(watch)
        futures = [
            in_thread(lambda a=a, b=b: [accounts.transfer(a, b, Decimal(1)) for _ in range(50)])
            for a, b in ((first, second), (second, first)) * 3
        ]
        for future in futures:
            future.result(60)
        assert deadlocks(watch) == before


def deadlocks(watch: psycopg.Connection) -> int:
    watch.execute("SELECT pg_stat_clear_snapshot()")
    row = watch.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row
    return row[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_check_of_ones_own_sees_what_was_read_and_can_refuse(account: Account, strategy: accounts.Strategy) -> None:
    def refuse(read: list[Account]) -> None:
        raise PermissionError(f"{read[0].pk} holds {read[0].balance}")

    with pytest.raises(PermissionError, match=f"{account.pk} holds 100"):
        accounts.withdraw(account.pk, Decimal(30), strategy=strategy, check=refuse)
    account.refresh_from_db()
    assert (account.balance, account.entries.count()) == (HUNDRED, 1)


def test_the_optimistic_strategy_checks_again_when_it_starts_again(account: Account) -> None:
    seen = []

    def be_overtaken_once(read: list[Account]) -> None:
        seen.append(read[0].balance)
        if len(seen) == 1:
            with session(autocommit=True) as other:
                other.execute("UPDATE orders_account SET balance = 200 WHERE id = %s", [account.pk])

    accounts.withdraw(account.pk, Decimal(30), strategy="optimistic", check=be_overtaken_once)
    account.refresh_from_db()
    assert (seen, account.balance) == ([HUNDRED, Decimal(200)], Decimal(170))
