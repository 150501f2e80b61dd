"""Concurrent-safe changes of accounts, and the check that each balance is the sum of its entries."""

import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal, NamedTuple, TypedDict, Unpack, get_args

from django.db import DatabaseError, connection, transaction

from orders.models import Account, Entry
from tasks.diagnosis.finding import describe_lock
from tasks.exceptions import Busy, RowlockError, StaleVersion
from tasks.locking import update_if_unchanged
from tasks.locking.rowlocks import lockers
from tasks.support import audit
from tasks.support.audit import Who
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
Changes = dict[int, Decimal]
LARGEST_BALANCE = Decimal("9999999999.99")
TRIES = 20
PAUSE_SECONDS = 0.005
PAUSE_CAP_SECONDS = 0.2
WAIT_SECONDS = 2.0
SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s, true)"


class Options(TypedDict, total=False):
    """The options of an operation: by default pessimistic, and waiting at most WAIT_SECONDS for the row.

    `nowait`: raise Busy at once. `check`: called with the accounts as read, before anything is written; it may raise to
    refuse. The optimistic strategy calls it again at each retry, so it must be safe to repeat.
    """

    strategy: Strategy
    nowait: bool
    check: Check | None


@dataclass(frozen=True)
class Change:
    """The result of an operation: new balance and version of each account by id, and the number of retries."""

    balances: Mapping[int, Decimal]
    versions: Mapping[int, int]
    retries: int = 0


def deposit(account_id: int, amount: Decimal | int, **options: Unpack[Options]) -> Change:
    """Put `amount` on the account. Raises AccountError, or Busy when another session holds the row."""
    return _apply({account_id: checked(amount)}, Entry.Kind.DEPOSIT, **options)


def withdraw(account_id: int, amount: Decimal | int, **options: Unpack[Options]) -> Change:
    """Take `amount` from the account. Raises AccountError (InsufficientFunds among others), or Busy."""
    return _apply({account_id: -checked(amount)}, Entry.Kind.WITHDRAWAL, **options)


def transfer(from_id: int, to_id: int, amount: Decimal | int, **options: Unpack[Options]) -> Change:
    """Move `amount` from one account to another: both sides or neither. Raises AccountError, or Busy."""
    if from_id == to_id:
        raise SameAccount(f"Account {from_id} cannot transfer to itself.")
    amount = checked(amount)
    return _apply({from_id: -amount, to_id: amount}, Entry.Kind.TRANSFER, **options)


def record(change: Change, who: Who, action: str, reason: str) -> None:
    """Write one intervention for each changed account, in the caller's transaction."""
    changes = [audit.Change(f"account:{id}", version - 1, version) for id, version in sorted(change.versions.items())]
    audit.record(connection, who, action, changes, reason)


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


def _apply(
    changes: Changes,
    kind: Entry.Kind,
    *,
    strategy: Strategy = "pessimistic",
    nowait: bool = False,
    check: Check | None = None,
) -> Change:
    if strategy not in get_args(Strategy):
        raise ValueError(f"Unknown strategy {strategy!r}: use 'pessimistic' or 'optimistic'.")
    for retries in range(TRIES):
        try:
            with transaction.atomic():
                accounts = _read(changes, strategy, nowait)
                if check:
                    check(accounts)
                _write(accounts, changes, kind)
            balances = {account.pk: account.balance for account in accounts}
            return Change(balances, {account.pk: account.version for account in accounts}, retries)
        except StaleVersion:
            pass
        except DatabaseError as error:
            if is_lock_not_available(error):
                raise Busy(_busy(changes)) from error
            # Inside a caller's transaction only the caller can repeat the whole of it.
            if not is_retryable(error) or connection.in_atomic_block:
                raise
        # With jitter, so that transactions which collided do not collide again.
        time.sleep(min(PAUSE_CAP_SECONDS, PAUSE_SECONDS * 2**retries) * random.random())  # noqa: S311  no secret
    raise Contended(f"Accounts {sorted(changes)} were changed by others at each of {TRIES} tries; nothing was changed.")


def _read(changes: Changes, strategy: Strategy, nowait: bool) -> list[Account]:
    """Read the accounts ordered by id: all transfers lock in this order, so they cannot deadlock."""
    rows = Account.objects.filter(pk__in=changes).order_by("pk")
    if strategy == "pessimistic":
        with connection.cursor() as cursor:
            cursor.execute(SET_LOCK_TIMEOUT, [f"{int(WAIT_SECONDS * 1000)}ms"])
        rows = rows.select_for_update(of=("self",), no_key=True, nowait=nowait)
    accounts = list(rows)
    if missing := set(changes) - {account.pk for account in accounts}:
        raise UnknownAccount(f"There is no account {', '.join(map(str, sorted(missing)))}.")
    return accounts


def _write(accounts: list[Account], changes: Changes, kind: Entry.Kind) -> None:
    """Swap each balance by its version, under a lock too: both strategies share this path."""
    for account in accounts:
        change = changes[account.pk]
        balance = account.balance + change
        if balance < 0:
            raise InsufficientFunds(f"Account {account.pk} holds {account.balance}, which does not cover {-change}.")
        if balance > LARGEST_BALANCE:
            raise BalanceTooLarge(f"Account {account.pk} would hold {balance}, more than {LARGEST_BALANCE}.")
        update_if_unchanged(account, balance=balance)
    transfer_id = uuid.uuid4() if kind is Entry.Kind.TRANSFER else None
    Entry.objects.bulk_create(
        Entry(account_id=account_id, amount=amount, kind=kind, transfer_id=transfer_id)
        for account_id, amount in changes.items()
    )


def _busy(changes: Changes) -> str:
    holders = {describe_lock(lock) for lock in lockers(Account, changes).values()} or {"another session holds it"}
    ids, why = ", ".join(map(str, sorted(changes))), "; ".join(sorted(holders))
    return f"Account {ids} is busy: {why}. Nothing was changed; try again."


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


class Mismatch(NamedTuple):
    """An account whose balance is not the sum of its entries."""

    id: int
    balance: Decimal
    entries: Decimal


def mismatches(limit: int = 100) -> list[Mismatch]:
    """Accounts whose balance is wrong, at most `limit`, read in one statement and so from one snapshot."""
    return [Mismatch(**row) for row in fetch(connection, MISMATCHES, {"limit": limit})]


def mismatch_of(account_id: int) -> Mismatch | None:
    """The mismatch of this account; None if its balance is right."""
    return next((Mismatch(**row) for row in fetch(connection, MISMATCH, {"id": account_id})), None)
