"""Check the ledger: an account's balance is always the sum of its entries."""

from dataclasses import dataclass
from decimal import Decimal

from django.db import connection

from tasks.support.database import fetch

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
