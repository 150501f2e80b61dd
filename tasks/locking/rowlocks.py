"""Find which session holds which row, without an extension and without touching the rows.

A row lock leaves the locker's transaction id in the row's `xmax`. `pg_locks` shows the session with the `transactionid`
ExclusiveLock on that id. So `xmax` joined to the granted locks gives the holders of the rows of one page; never ask for
a whole table. Three cases are harder:

- Several lockers of one row share a multixact id; its members carry their modes.
- A released savepoint (a nested `atomic()`) gives its lock to the transaction around it, yet its own id leaves
  `pg_locks`. The holder is then found by elimination, or through a session that waits for the row, or named uncertain.
- The mode of a single locker is not visible. A foreign key's KEY SHARE blocks no claim and no update. So a locker that
  writes only a referring table, and not this one, counts as KEY SHARE.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, LiteralString

from django.db import connection as default_connection
from django.db import models
from psycopg import sql

from tasks.support.database import Connection, fetch

KEY_SHARE = "keysh"  # as pg_get_multixact_members writes it

# Transaction ids and multixact ids are separate, so an old id of one kind may equal a running one of the other. So a
# session counts only if it also holds this table's lock, like every locker of a row.
LOCKERS = """
WITH page AS MATERIALIZED (
    SELECT {key} AS id, tableoid, xmax AS x FROM {table} WHERE {key} = ANY(%(ids)s) AND xmax <> '0'::xid
), lock AS MATERIALIZED (
    SELECT locktype, mode, relation, transactionid AS x, virtualtransaction AS owner, pid
    FROM pg_locks WHERE granted AND locktype IN ('relation', 'transactionid')
), running AS MATERIALIZED (
    SELECT x, owner, pid FROM lock WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock'
), member AS (
    SELECT id, tableoid, x, NULL::text AS mode FROM page
    UNION ALL
    SELECT page.id, page.tableoid, multi.xid, multi.mode
    FROM page CROSS JOIN LATERAL rowlock_multixact_members(page.x) AS multi
    WHERE NOT EXISTS (SELECT FROM running WHERE running.x = page.x)
), locker AS (
    SELECT member.id, member.tableoid, member.x, member.mode, running.owner, running.pid
    FROM member LEFT JOIN running ON running.x = member.x
    WHERE running.owner IS NULL OR EXISTS (
        SELECT FROM lock WHERE lock.locktype = 'relation' AND lock.relation = member.tableoid
                           AND lock.owner = running.owner AND lock.mode <> 'AccessShareLock')
)
SELECT locker.id, locker.x::text AS xid, locker.pid, session.application_name,
    extract(epoch FROM clock_timestamp() - session.xact_start)::float8 AS transaction_seconds,
    coalesce(locker.mode, CASE WHEN EXISTS (
        SELECT FROM lock WHERE lock.locktype = 'relation' AND lock.relation = locker.tableoid
                           AND lock.owner = locker.owner AND lock.mode NOT IN ('AccessShareLock', 'RowShareLock')
    ) THEN NULL WHEN EXISTS (
        SELECT FROM lock JOIN pg_constraint AS reference ON reference.conrelid = lock.relation
        WHERE lock.locktype = 'relation' AND lock.owner = locker.owner AND lock.mode = 'RowExclusiveLock'
          AND reference.contype = 'f' AND reference.confrelid = locker.tableoid
    ) THEN 'keysh' END) AS mode
FROM locker LEFT JOIN pg_stat_activity AS session USING (pid)
WHERE locker.owner IS NOT NULL OR rowlock_in_progress(locker.x)
"""

# Suspects for a subtransaction whose id left pg_locks: sessions with this table's lock and an older transaction. The
# first waiter for a row holds its tuple lock; the session that it waits for holds the row.
SUSPECTS = """
WITH page AS MATERIALIZED (
    SELECT uncertain.id, held.tableoid, uncertain.x,
        (held.ctid::text::point)[0]::bigint AS page, (held.ctid::text::point)[1]::int AS tuple
    FROM {table} AS held JOIN unnest(%(ids)s, %(xids)s::text[]::xid[]) AS uncertain (id, x) ON uncertain.id = held.{key}
), lock AS MATERIALIZED (
    SELECT locktype, mode, relation, page, tuple, transactionid AS x, virtualtransaction AS owner, pid
    FROM pg_locks WHERE granted AND locktype IN ('relation', 'tuple', 'transactionid')
), suspect AS (
    SELECT page.id, waited_for.pid, true AS is_waited_for
    FROM page JOIN lock ON lock.locktype = 'tuple' AND lock.relation = page.tableoid
                       AND lock.page = page.page AND lock.tuple = page.tuple
    CROSS JOIN LATERAL unnest(pg_blocking_pids(lock.pid)) AS waited_for (pid)
    UNION
    SELECT page.id, lock.pid, false
    FROM page JOIN lock ON lock.locktype = 'relation' AND lock.relation = page.tableoid
                       AND lock.mode <> 'AccessShareLock'
    WHERE EXISTS (SELECT FROM lock AS own WHERE own.locktype = 'transactionid' AND own.mode = 'ExclusiveLock'
                                            AND own.owner = lock.owner AND age(own.x) > age(page.x))
)
SELECT suspect.id, suspect.is_waited_for, suspect.pid, session.application_name,
    extract(epoch FROM clock_timestamp() - session.xact_start)::float8 AS transaction_seconds
FROM suspect LEFT JOIN pg_stat_activity AS session USING (pid)
"""


class Hold(StrEnum):
    """The kind of hold on a row."""

    HELD = "held"
    UNCERTAIN = "uncertain"  # held by an unknown session
    TOUCHED = "touched"  # FOR KEY SHARE: no claim and no update waits for it


@dataclass(frozen=True)
class Locker:
    """A session that locks a row. A prepared transaction has no `pid`.

    `mode` is as pg_get_multixact_members writes it (`keysh`, `sh`, `fornokeyupd`, …), None when it is not visible.
    """

    pid: int | None
    application_name: str | None
    transaction_seconds: float | None
    mode: str | None = None


@dataclass(frozen=True)
class RowLock:
    """The holders of one row; `lockers` is empty when the hold is uncertain."""

    hold: Hold
    lockers: tuple[Locker, ...] = ()

    @property
    def is_exclusive(self) -> bool:
        """True if SKIP LOCKED skips the row."""
        return self.hold is not Hold.TOUCHED


def lockers(model: type[models.Model], ids: Iterable[Any], connection: Connection | None = None) -> dict[Any, RowLock]:
    """The locks on rows of `model`, by primary key; free rows are left out.

    Args:
        model: any model; its table must be on the search path.
        ids: primary keys of one page of rows, some hundreds at most.
        connection: the database to ask; the default one if omitted.

    A lock that was taken or released within the last milliseconds may be missed. At most two statements, 1 to 2 ms for
    fifty rows. Source: the manual on `pg_locks`, `pg_xact_status` and `pg_get_multixact_members`.
    """
    ids = list(ids)
    if not ids:
        return {}
    connection = connection or default_connection
    found = fetch(connection, _of_table(LOCKERS, model), {"ids": ids})
    found_of: dict[Any, list[Locker]] = {row["id"]: [] for row in found}
    for row in found:
        if row["pid"] is not None:
            found_of[row["id"]].append(_locker(row))
    uncertain = {row["id"]: row["xid"] for row in found if row["pid"] is None}
    if uncertain:
        for row_id, owners in _owners(connection, model, uncertain).items():
            found_of[row_id] += owners
    return {row_id: _row_lock(sessions, row_id in uncertain) for row_id, sessions in found_of.items()}


def statement_of(model: type[models.Model]) -> str:
    """The statement with which `lockers` reads the locks of this model's rows."""
    return _of_table(LOCKERS, model)


def _owners(connection: Connection, model: type[models.Model], xids: dict[Any, str]) -> dict[Any, list[Locker]]:
    """For rows whose locker is not in `pg_locks`: the session that a waiter waits for, else the only suspect."""
    params = {"ids": list(xids), "xids": list(xids.values())}
    suspects: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in fetch(connection, _of_table(SUSPECTS, model), params):
        suspects[row["id"]].append(row)
    owners = {}
    for row_id, rows in suspects.items():
        waited_for = [row for row in rows if row["is_waited_for"]]
        owners[row_id] = [_locker(row) for row in waited_for or (rows if len(rows) == 1 else [])]
    return owners


def _locker(row: dict[str, Any]) -> Locker:
    return Locker(row["pid"], row["application_name"], row["transaction_seconds"], row.get("mode"))


def _row_lock(found: list[Locker], is_uncertain: bool) -> RowLock:
    exclusive = tuple(locker for locker in found if locker.mode != KEY_SHARE)
    if exclusive:
        return RowLock(Hold.HELD, exclusive)
    return RowLock(Hold.UNCERTAIN) if is_uncertain else RowLock(Hold.TOUCHED, tuple(found))


def _of_table(statement: LiteralString, model: type[models.Model]) -> str:
    key = model._meta.pk
    names = {"table": sql.Identifier(model._meta.db_table), "key": sql.Identifier(key.column or key.attname)}
    return sql.SQL(statement).format(**names).as_string()
