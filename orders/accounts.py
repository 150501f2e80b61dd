"""Concurrent-safe changes of accounts, and the check that each balance is the sum of its entries."""

import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal

from django.db import DatabaseError, connection, transaction
from django.db.models import QuerySet

from orders.models import Account, Entry
from tasks.exceptions import Busy, RowlockError, StaleVersion
from tasks.locking import update_if_unchanged
from tasks.locking.rowlocks import lockers
from tasks.support.database import fetch, is_lock_not_available, is_retryable


class AccountError(RowlockError):
    """The account operation was refused; nothing was changed."""


class InvalidAmount(AccountError, ValueError):
    """The amount must be a positive Decimal with at most two decimals."""


class SameAccount(AccountError):
    """An account cannot transfer to itself."""


class UnknownAccount(AccountError):
    """There is no such account."""


class InsufficientFunds(AccountError):
    """The balance does not cover the amount; nothing was changed."""


class BalanceTooLarge(AccountError):
    """The new balance would not fit into numeric(12,2); nothing was changed."""


class Contended(Busy):
    """Others changed the account at every try; nothing was changed. Try again, or use the pessimistic strategy."""


Strategy = Literal["pessimistic", "optimistic"]
Check = Callable[[list[Account]], object]
LARGEST_BALANCE = Decimal("9999999999.99")
TRIES = 20
PAUSE_SECONDS = 0.005
PAUSE_CAP_SECONDS = 0.2
WAIT_SECONDS = 2.0
SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s, true)"


@dataclass(frozen=True)
class Terms:
    """The options of an operation; see `deposit`."""

    strategy: str
    nowait: bool
    check: Check | None


@dataclass(frozen=True)
class Change:
    """The result of an operation: new balance and version of each account by id, and the number of retries."""

    balances: Mapping[int, Decimal]
    versions: Mapping[int, int]
    retries: int = 0


def deposit(
    account_id: int,
    amount: Decimal | int,
    *,
    strategy: Strategy = "pessimistic",
    nowait: bool = False,
    check: Check | None = None,
) -> Change:
    """Put `amount` on the account. Raises AccountError, or Busy when another session holds the row.

    `check` is called with the accounts as read, before anything is written; it may raise to refuse. The optimistic
    strategy calls it again at each retry, so it must be safe to repeat.
    """
    return _apply({account_id: checked(amount)}, Entry.Kind.DEPOSIT, Terms(strategy, nowait, check))


def withdraw(
    account_id: int,
    amount: Decimal | int,
    *,
    strategy: Strategy = "pessimistic",
    nowait: bool = False,
    check: Check | None = None,
) -> Change:
    """Take `amount` from the account. Raises AccountError (InsufficientFunds among others), or Busy."""
    return _apply({account_id: -checked(amount)}, Entry.Kind.WITHDRAWAL, Terms(strategy, nowait, check))


def transfer(
    from_id: int,
    to_id: int,
    amount: Decimal | int,
    *,
    strategy: Strategy = "pessimistic",
    nowait: bool = False,
    check: Check | None = None,
) -> Change:
    """Move `amount` from one account to another: both sides or neither. Raises AccountError, or Busy."""
    if from_id == to_id:
        raise SameAccount(f"Account {from_id} cannot transfer to itself.")
    amount = checked(amount)
    return _apply({from_id: -amount, to_id: amount}, Entry.Kind.TRANSFER, Terms(strategy, nowait, check))


def checked(amount: Decimal | int) -> Decimal:
    """Return the amount with two decimals. Raises InvalidAmount unless it is positive, finite and in whole cents.

    Text and floats are refused: a float has no exact cents.

    >>> checked(Decimal("12.5"))
    Decimal('12.50')
    """
    if isinstance(amount, int) and not isinstance(amount, bool):
        amount = Decimal(amount)
    if not isinstance(amount, Decimal):
        raise InvalidAmount(f"The amount {amount!r} is a {type(amount).__name__}; give a Decimal, made from text.")
    if not amount.is_finite() or amount <= 0:
        raise InvalidAmount(f"The amount {amount} is not positive; give how much to move, the operation says where to.")
    try:
        cents = amount.quantize(Decimal("0.01"))
    except InvalidOperation as error:
        raise InvalidAmount(f"The amount {amount} is too large.") from error
    if cents != amount:
        raise InvalidAmount(f"The amount {amount} has more than two decimals; round it first.")
    if cents > LARGEST_BALANCE:
        raise InvalidAmount(f"The amount {amount} is too large: an account holds at most {LARGEST_BALANCE}.")
    return cents


Changes = dict[int, Decimal]


def _apply(changes: Changes, kind: Entry.Kind, terms: Terms) -> Change:
    if terms.strategy not in READERS:
        raise ValueError(f"Unknown strategy {terms.strategy!r}: use 'pessimistic' or 'optimistic'.")
    for retries in range(TRIES):
        try:
            with transaction.atomic():
                changed = _change(changes, kind, terms)
            return Change(
                {account.pk: account.balance for account in changed},
                {account.pk: account.version for account in changed},
                retries,
            )
        except StaleVersion:
            _pause(retries)
        except DatabaseError as error:
            if is_lock_not_available(error):
                raise Busy(_who_holds(changes)) from error
            # Inside a caller's transaction only the caller can repeat the whole of it.
            if not is_retryable(error) or connection.in_atomic_block:
                raise
            _pause(retries)
    raise Contended(f"Accounts {sorted(changes)} were changed by others at each of {TRIES} tries; nothing was changed.")


def _change(changes: Changes, kind: Entry.Kind, terms: Terms) -> list[Account]:
    accounts = _read(READERS[terms.strategy](terms.nowait), changes)
    if terms.check:
        terms.check(accounts)
    return _write(accounts, changes, kind)


def _locking(nowait: bool) -> "QuerySet[Account]":
    with connection.cursor() as cursor:
        cursor.execute(SET_LOCK_TIMEOUT, [f"{int(WAIT_SECONDS * 1000)}ms"])
    return Account.objects.select_for_update(of=("self",), no_key=True, nowait=nowait)


READERS: dict[str, Callable[[bool], "QuerySet[Account]"]] = {
    "pessimistic": _locking,
    "optimistic": lambda nowait: Account.objects.all(),
}


def _read(accounts: "QuerySet[Account]", changes: Changes) -> list[Account]:
    """Read the accounts ordered by id: all transfers lock in this order, so they cannot deadlock."""
    found = list(accounts.filter(pk__in=changes).order_by("pk"))
    if missing := set(changes) - {account.pk for account in found}:
        raise UnknownAccount(f"There is no account {', '.join(map(str, sorted(missing)))}.")
    return found


def _write(accounts: list[Account], changes: Changes, kind: Entry.Kind) -> list[Account]:
    """Swap each balance by its version, under a lock too: both strategies share this path."""
    transfer_id = uuid.uuid4() if kind is Entry.Kind.TRANSFER else None
    for account in accounts:
        update_if_unchanged(account, balance=_new_balance(account, changes[account.pk]))
    Entry.objects.bulk_create(
        Entry(account_id=account_id, amount=amount, kind=kind, transfer_id=transfer_id)
        for account_id, amount in changes.items()
    )
    return accounts


def _new_balance(account: Account, change: Decimal) -> Decimal:
    balance = account.balance + change
    if balance < 0:
        raise InsufficientFunds(f"Account {account.pk} holds {account.balance}, which does not cover {-change}.")
    if balance > LARGEST_BALANCE:
        raise BalanceTooLarge(f"Account {account.pk} would hold {balance}, more than {LARGEST_BALANCE}.")
    return balance


def _pause(retries: int) -> None:
    """Sleep with exponential backoff and jitter, so that transactions which collided do not collide again."""
    time.sleep(min(PAUSE_CAP_SECONDS, PAUSE_SECONDS * 2**retries) * random.random())  # noqa: S311  no secret


def _who_holds(changes: Changes) -> str:
    holders = {
        f"pid {locker.pid} ({locker.application_name}, transaction open for {locker.transaction_seconds or 0:.0f} s)"
        for row_lock in lockers(Account, changes).values()
        for locker in row_lock.lockers
    }
    by = " and ".join(sorted(holders)) or "another session"
    return f"Account {', '.join(map(str, sorted(changes)))} is busy: held by {by}. Nothing was changed; try again."


MISMATCHES = """
SELECT account.id, account.balance, coalesce(sum(entry.amount), 0) AS entries
FROM orders_account AS account LEFT JOIN orders_entry AS entry ON entry.account_id = account.id
GROUP BY account.id HAVING account.balance <> coalesce(sum(entry.amount), 0)
ORDER BY account.id LIMIT %(limit)s::int
"""

MISMATCH = """
SELECT account.id, account.balance, sums.entries
FROM orders_account AS account CROSS JOIN LATERAL (
    SELECT coalesce(sum(entry.amount), 0) AS entries FROM orders_entry AS entry WHERE entry.account_id = account.id
) AS sums
WHERE account.id = %(id)s::bigint AND account.balance <> sums.entries
"""


@dataclass(frozen=True)
class Mismatch:
    """An account whose balance is not the sum of its entries."""

    id: int
    balance: Decimal
    entries: Decimal


def mismatches(limit: int = 100) -> list[Mismatch]:
    """Accounts whose balance is wrong, at most `limit`, read in one statement and so from one snapshot."""
    return [Mismatch(**row) for row in fetch(connection, MISMATCHES, {"limit": limit})]


def mismatch_of(account_id: int) -> Mismatch | None:
    """The mismatch of this account; None if its balance is right."""
    rows = fetch(connection, MISMATCH, {"id": account_id})
    return Mismatch(**rows[0]) if rows else None
