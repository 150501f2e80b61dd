"""Read the sessions and locks of the server from its catalogs, and redact their statements (fault F21)."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from django.apps import apps
from django.db import connection as default_connection
from django.db import models
from psycopg import sql

from dashboard.locks import named_locks
from dashboard.locks.identity import identify, split, split_task
from dashboard.locks.limits import PREPARED, Names, Unavailable
from dashboard.locks.named_locks import Edge
from dashboard.locks.tree import HIDDEN, Lock, Node, RowRef, Session, build_tree, circles, outsider
from tasks.support.database import Connection, fetch
from tasks.support.redacted_sql import redact_query

KEYS_OF_PLACES = "SELECT ctid::text AS place, {key} AS id FROM {table} WHERE ctid = ANY(%(places)s::text[]::tid[])"


def rows_waited_for(
    connection: Connection, locks: Iterable[dict[str, Any]], names: Names | None = None
) -> dict[int, RowRef]:
    """The row for each session with a tuple lock, granted or not, on a model's table; one statement per table.

    With `names` it leaves out the rows of locked tables instead of waiting.
    """
    places: dict[type[models.Model], dict[int, str]] = defaultdict(dict)
    known = {model._meta.db_table: model for model in apps.get_models()}
    for lock in locks:
        if lock["locktype"] == "tuple" and lock["relation"] in known:
            places[known[lock["relation"]]][lock["pid"]] = f"({lock['page']},{lock['tuple']})"
    found: dict[int, RowRef] = {}
    for model, by_pid in places.items():
        look_up = partial(_rows_at, connection, model, by_pid)
        found.update((names.ask(look_up, model._meta.db_table) if names else look_up()) or {})
    return found


def _rows_at(connection: Connection, model: type[models.Model], by_pid: dict[int, str]) -> dict[int, RowRef]:
    key = model._meta.pk
    identifiers = {"table": sql.Identifier(model._meta.db_table), "key": sql.Identifier(key.column or key.attname)}
    statement = sql.SQL(KEYS_OF_PLACES).format(**identifiers).as_string()
    ids = {row["place"]: row["id"] for row in fetch(connection, statement, {"places": sorted(set(by_pid.values()))})}
    return {pid: RowRef(model, ids[place]) for pid, place in by_pid.items() if place in ids}


SESSION_CAP = 500
LOCK_CAP = 2000

# A session that this role may not inspect hides its type and its wait. So each hidden one is asked for blockers.
SESSIONS = """
SELECT pid, coalesce(application_name, '') AS application_name, usename AS role, client_addr::text AS client,
    backend_start, xact_start, state, wait_event_type, wait_event, left(query, 1000) AS query,
    length(query) > 1000 OR octet_length(query) + 4 >= (
        SELECT setting::int FROM pg_settings WHERE name = 'track_activity_query_size') AS is_cut,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS transaction_seconds,
    extract(epoch FROM clock_timestamp() - state_change)::float8 AS state_seconds,
    backend_xid IS NOT NULL AS has_written, backend_type,
    CASE WHEN wait_event_type = 'Lock' OR backend_type IS NULL THEN pg_blocking_pids(pid) ELSE '{}' END AS blocked_by
FROM pg_stat_activity
WHERE datname = current_database() AND coalesce(backend_type, 'client backend') = 'client backend'
  AND pid <> pg_backend_pid()
ORDER BY wait_event_type = 'Lock' DESC NULLS LAST, xact_start NULLS LAST, pid
LIMIT %(limit)s::int
"""

# Blockers that SESSIONS misses: autovacuum, replication, sessions of other databases or beyond the cap.
BLOCKERS = """
SELECT pid, coalesce(application_name, '') AS application_name, usename AS role, client_addr::text AS client,
    backend_start, xact_start, state, wait_event_type, wait_event, left(query, 1000) AS query,
    length(query) > 1000 OR octet_length(query) + 4 >= (
        SELECT setting::int FROM pg_settings WHERE name = 'track_activity_query_size') AS is_cut,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS transaction_seconds,
    extract(epoch FROM clock_timestamp() - state_change)::float8 AS state_seconds,
    backend_xid IS NOT NULL AS has_written,
    CASE WHEN datname IS DISTINCT FROM current_database() THEN coalesce('of database ' || datname, 'of no database')
        ELSE backend_type END AS backend_type,
    pg_blocking_pids(pid) AS blocked_by
FROM pg_stat_activity WHERE pid = ANY(%(pids)s::int[]) AND pid <> pg_backend_pid()
"""

PREPARED_TRANSACTIONS = """
SELECT string_agg(gid, ', ' ORDER BY prepared) AS gids,
    extract(epoch FROM clock_timestamp() - min(prepared))::float8 AS seconds
FROM pg_prepared_xacts WHERE database = current_database()
"""

# Pages show locks that are waited for; of held locks only tuple locks add something: the row.
LOCKS = """
SELECT pid, locktype, mode, granted,
    CASE WHEN lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
         THEN relation::regclass::text END AS relation,
    page, tuple, coalesce(transactionid::text, virtualxid) AS transaction,
    classid::bigint AS class, objid::bigint AS object, objsubid AS form, waitstart AS since,
    extract(epoch FROM clock_timestamp() - waitstart)::float8 AS wait_seconds
FROM pg_locks AS lock
WHERE pid = ANY(%(pids)s::int[]) AND (NOT granted OR locktype = 'tuple' OR %(with_held)s::boolean)
  AND (locktype <> 'virtualxid' OR NOT granted)
ORDER BY granted, locktype = 'tuple' DESC, pid, locktype, relation
LIMIT %(limit)s::int
"""

# Names of the advisory locks that Rowlock takes, found by the same hashes; one statement for each table.
OWN_NAMES = """
SELECT names.name, (hashtext('rowlock:' || names.key)::bigint & 4294967295) AS class,
    (hashtext(current_schema())::bigint & 4294967295) AS object, 2 AS form
FROM (VALUES ('the idle worker on duty', 'duty'), ('the sweep for dead workers', 'sweep'),
    ('the sampler of the lock history', 'sampler')) AS names (name, key)
"""
WORKER_NAMES = """
SELECT 'worker ' || id AS name, (hashtext('rowlock:presence:' || current_schema())::bigint & 4294967295) AS class,
    (hashtext(id)::bigint & 4294967295) AS object, 2 AS form
FROM tasks_worker WHERE stopped_at IS NULL
"""
LOCK_NAMES = """
SELECT 'the holder of ' || name AS name, (rowlock_lock_class()::bigint & 4294967295) AS class,
    rowlock_lock_presence(owner) AS object, 2 AS form
FROM tasks_lock WHERE owner IS NOT NULL
UNION ALL
SELECT name, (rowlock_lock_key(name) >> 32 & 4294967295), (rowlock_lock_key(name) & 4294967295), 1
FROM tasks_lock WHERE backend = 'advisory'
"""


@dataclass(frozen=True)
class Activity:
    """One snapshot of the server: sessions, the locks between waiting and blocking ones, and the tree.

    `by_pid` also has the blockers that are no sessions; `circles`: sessions that wait for each other for ever;
    `unavailable`: tables that could not be asked for names.
    """

    sessions: tuple[Session, ...]
    locks: tuple[Lock, ...]
    roots: tuple[Node, ...]
    is_capped: bool
    by_pid: dict[int, Session]
    circles: list[list[int]]
    unavailable: frozenset[Unavailable] = frozenset()

    @property
    def blocked(self) -> list[Session]:
        return [session for session in self.sessions if session.blocked_by]

    @property
    def hidden(self) -> int:
        return sum(session.is_hidden for session in self.sessions)


def read(connection: Connection | None = None, *, limit: int = SESSION_CAP, with_held: bool = False) -> Activity:
    """The sessions of this database and the tree of blockers; one statement if nobody waits or holds a lease.

    `with_held`: also read the locks that these sessions hold, six times as many.
    """
    connection = connection or default_connection
    rows = fetch(connection, SESSIONS, {"limit": limit + 1})
    redact = cache(redact_query)  # hundreds of idle workers have the same long statement
    sessions = [session_of(row, redact) for row in rows[:limit]]
    missing = {pid for session in sessions for pid in session.blocked_by} - {session.pid for session in sessions}
    if missing := missing - {PREPARED}:
        sessions += [session_of(row, redact) for row in fetch(connection, BLOCKERS, {"pids": sorted(missing)})]
    names, edges = Names(connection), list[Edge]()
    if any(session.identity.kind == "lock" for session in sessions):
        edges = named_locks.edges(names, sessions)
        sessions = with_edges(sessions, edges)
    everybody = [*sessions, *outsiders_of(connection, sessions, edges)]
    involved = involved_pids(sessions)
    locks = (*_locks(names, involved, with_held), *(edge.lock for edge in edges)) if involved else ()
    return Activity(
        sessions=tuple(sessions),
        locks=locks,
        roots=build_tree(everybody, locks),
        is_capped=len(rows) > limit,
        by_pid={session.pid: session for session in everybody},
        circles=circles(everybody),
        unavailable=frozenset(names.unavailable),
    )


def session_of(row: dict[str, Any], redact: Callable[..., str]) -> Session:
    is_cut = row.pop("is_cut")
    kind = identify(row["application_name"]).kind
    request, query = split(row["query"] or "")
    task_id, traceparent, query = split_task(query)
    row["query"] = query if query == HIDDEN else redact(query, is_cut=is_cut)
    row["blocked_by"] = tuple(dict.fromkeys(row["blocked_by"]))
    session = Session(**row, request=request if kind == "web" else "")
    if kind == "worker" and session.state != "idle":  # the last statement of an idle one was another task's
        return replace(session, task_id=task_id, traceparent=traceparent)
    return session


def with_edges(sessions: Iterable[Session], edges: Iterable[Edge]) -> list[Session]:
    """Add the blockers that the edges name to the sessions."""
    more: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        more[edge.lock.pid].append(edge.blocker)
    return [
        replace(session, blocked_by=tuple(dict.fromkeys((*session.blocked_by, *more[session.pid]))))
        for session in sessions
    ]


def outsiders_of(connection: Connection, sessions: Iterable[Session], edges: Iterable[Edge]) -> list[Session]:
    """Holders that are no sessions: those of the edges, and prepared transactions if somebody waits for one."""
    found = {edge.outsider.pid: edge.outsider for edge in edges if edge.outsider}
    if any(PREPARED in session.blocked_by for session in sessions):
        [prepared] = fetch(connection, PREPARED_TRANSACTIONS)
        label = f"prepared transaction {prepared['gids'] or 'of another database'}"
        found[PREPARED] = outsider(PREPARED, label, prepared["seconds"])
    return list(found.values())


def involved_pids(sessions: Iterable[Session]) -> set[int]:
    """The pids of sessions that wait or block."""
    return {pid for session in sessions if session.blocked_by for pid in (session.pid, *session.blocked_by)}


def _locks(names: Names, pids: Iterable[int], with_held: bool) -> tuple[Lock, ...]:
    rows = fetch(names.connection, LOCKS, {"pids": list(pids), "limit": LOCK_CAP, "with_held": with_held})
    named = _advisory_names(names) if any(row["locktype"] == "advisory" for row in rows) else {}
    waited_for = rows_waited_for(names.connection, rows, names)
    return tuple(_lock(row, named, waited_for) for row in rows)


def _advisory_names(names: Names) -> dict[tuple[int, int, int], str]:
    """The names of advisory locks by class, object and form."""
    rows = fetch(names.connection, OWN_NAMES)
    for table, statement in (("tasks_worker", WORKER_NAMES), ("tasks_lock", LOCK_NAMES)):
        rows += names.ask(partial(fetch, names.connection, statement), table) or []
    return {(row["class"], row["object"], row["form"]): row["name"] for row in rows}


def _lock(row: dict[str, Any], names: dict[tuple[int, int, int], str], waited_for: dict[int, RowRef]) -> Lock:
    """A row of pg_locks with its lock's name, and the table row that it concerns, if any."""
    name = row["transaction"]
    if row["locktype"] == "advisory":
        number = f"{row['class']}, {row['object']}" if row["form"] == 2 else str(row["class"] << 32 | row["object"])
        name = names.get((row["class"], row["object"], row["form"]), number)
    is_of_row = row["locktype"] == "tuple" or (row["locktype"] == "transactionid" and not row["granted"])
    return Lock(
        pid=row["pid"],
        locktype=row["locktype"],
        mode=row["mode"],
        granted=row["granted"],
        relation=row["relation"],
        name=name,
        wait_seconds=row["wait_seconds"],
        since=row["since"],
        row=waited_for.get(row["pid"]) if is_of_row else None,
    )
