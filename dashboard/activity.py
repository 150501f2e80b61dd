"""Who is connected, who waits for whom, and which locks are in between.

Everything starts from the sessions, not from `pg_locks`: only those that wait are asked for their blockers, and only
the locks of sessions that wait or block are read, so that the page stays cheap on a busy server (fault F21).
`pg_locks` is not a snapshot: within one look a session may have moved on, and the tree leaves out what does not fit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection as default_connection

from dashboard.identity import Identity, identify
from tasks.database import Connection, fetch

SESSION_CAP = 500
LOCK_CAP = 2000

# Blockers may be prepared transactions, which pg_blocking_pids() gives as 0.
SESSIONS = """
SELECT pid, coalesce(application_name, '') AS application_name, usename AS role, client_addr::text AS client,
    backend_start, xact_start, state, wait_event_type, wait_event, left(query, 1000) AS query,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS transaction_seconds,
    extract(epoch FROM clock_timestamp() - state_change)::float8 AS state_seconds,
    CASE WHEN wait_event_type = 'Lock' THEN pg_blocking_pids(pid) ELSE '{}' END AS blocked_by
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
ORDER BY wait_event_type = 'Lock' DESC NULLS LAST, xact_start NULLS LAST, pid
LIMIT %(limit)s::int
"""

LOCKS = """
SELECT pid, locktype, mode, granted,
    CASE WHEN lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
         THEN relation::regclass::text END AS relation,
    coalesce(transactionid::text, virtualxid) AS transaction,
    classid::bigint AS class, objid::bigint AS object, objsubid AS form,
    extract(epoch FROM clock_timestamp() - waitstart)::float8 AS wait_seconds
FROM pg_locks AS lock
WHERE pid = ANY(%(pids)s::int[]) AND locktype <> 'virtualxid'
ORDER BY granted, pid, locktype, relation
LIMIT %(limit)s::int
"""

# The advisory locks that Rowlock takes, by the same hashes, so that each can be called by its name.
ADVISORY_NAMES = """
SELECT 'worker ' || id AS name, (hashtext('rowlock:presence:' || current_schema())::bigint & 4294967295) AS class,
    (hashtext(id)::bigint & 4294967295) AS object
FROM tasks_worker WHERE stopped_at IS NULL
UNION ALL
SELECT names.name, (hashtext('rowlock:' || names.key)::bigint & 4294967295),
    (hashtext(current_schema())::bigint & 4294967295)
FROM (VALUES ('the idle worker on duty', 'duty'), ('the sweep for dead workers', 'sweep')) AS names (name, key)
"""


@dataclass(frozen=True)
class Session:
    """One client backend of this database; times in seconds. `query` may be hidden from this role."""

    pid: int
    application_name: str
    role: str | None
    client: str | None
    backend_start: datetime
    xact_start: datetime | None
    state: str | None
    wait_event_type: str | None
    wait_event: str | None
    query: str
    transaction_seconds: float | None
    state_seconds: float | None
    blocked_by: tuple[int, ...]

    @property
    def identity(self) -> Identity:
        return identify(self.application_name)

    @property
    def is_idle_in_transaction(self) -> bool:
        return (self.state or "").startswith("idle in transaction")

    @property
    def is_hidden(self) -> bool:
        """This role may not see what the session does: pg_read_all_stats is missing."""
        return self.query == "<insufficient privilege>"


@dataclass(frozen=True)
class Lock:
    """One line of `pg_locks`, of a session that waits or blocks."""

    pid: int
    locktype: str
    mode: str
    granted: bool
    relation: str | None
    name: str | None
    wait_seconds: float | None


@dataclass(frozen=True)
class Node:
    """A session in the tree of who waits for whom, with the lock that it waits for."""

    session: Session
    waits_for: Lock | None
    blocked: tuple["Node", ...] = ()

    @property
    def victims(self) -> int:
        """How many sessions wait for this one, directly or behind another."""
        return len(self.victim_pids())

    def victim_pids(self) -> list[int]:
        """The pids of those sessions, nearest first."""
        pids, level = [], list(self.blocked)
        while level:
            pids += [node.session.pid for node in level]
            level = [below for node in level for below in node.blocked]
        return pids


@dataclass(frozen=True)
class Activity:
    """One look at the server: every session, the locks between those that wait and those that block, the tree."""

    sessions: tuple[Session, ...]
    locks: tuple[Lock, ...] = ()
    roots: tuple[Node, ...] = ()
    is_capped: bool = False
    by_pid: dict[int, Session] = field(default_factory=dict)

    @property
    def blocked(self) -> list[Session]:
        return [session for session in self.sessions if session.blocked_by]

    @property
    def hidden(self) -> int:
        return sum(session.is_hidden for session in self.sessions)


def look(connection: Connection | None = None, *, limit: int = SESSION_CAP) -> Activity:
    """The sessions of this database and the tree of blockers; three statements, the last two only when one waits."""
    connection = connection or default_connection
    rows = fetch(connection, SESSIONS, {"limit": limit + 1})
    sessions = tuple(Session(**{**row, "blocked_by": tuple(row["blocked_by"])}) for row in rows[:limit])
    by_pid = {session.pid: session for session in sessions}
    involved = {pid for session in sessions if session.blocked_by for pid in (session.pid, *session.blocked_by)}
    locks = _locks(connection, involved) if involved else ()
    return Activity(sessions, locks, build_tree(sessions, locks), len(rows) > limit, by_pid)


def build_tree(sessions: Iterable[Session], locks: Iterable[Lock] = ()) -> tuple[Node, ...]:
    """Root blockers, those with the most victims first.

    A session stands in the tree once, under the blocker that itself waits longest down the chain: in a queue of fifty
    for one row each waits for all before it, and a tree of every path would have 2^50 nodes. A circle (a deadlock that
    PostgreSQL is about to break) is cut at its lowest pid.
    """
    by_pid = {session.pid: session for session in sessions}
    waits = {lock.pid: lock for lock in locks if not lock.granted}
    parents = _parents(by_pid)
    below: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        below.setdefault(parent, []).append(pid)
    nodes: dict[int, Node] = {}
    for pid in _leaves_first(below):
        nodes[pid] = Node(by_pid[pid], waits.get(pid), tuple(nodes[victim] for victim in sorted(below.get(pid, ()))))
    roots = [nodes[pid] for pid in below if pid not in parents]
    return tuple(sorted(roots, key=lambda root: (-root.victims, root.session.pid)))


def _parents(by_pid: dict[int, Session]) -> dict[int, int]:
    """For each session that waits, the blocker under which it is shown."""
    blockers = {
        pid: {blocker for blocker in session.blocked_by if blocker in by_pid and blocker != pid}
        for pid, session in by_pid.items()
    }
    depth = {pid: 0 for pid, behind in blockers.items() if not behind}
    parents: dict[int, int] = {}
    waiting = {pid for pid, behind in blockers.items() if behind}
    while waiting:
        ready = [pid for pid in waiting if blockers[pid] <= depth.keys()]
        if not ready:  # a circle
            depth[min(waiting)] = 0
            waiting.discard(min(waiting))
            continue
        for pid in ready:
            parents[pid] = max(blockers[pid], key=lambda blocker: (depth[blocker], -blocker))
            depth[pid] = depth[parents[pid]] + 1
        waiting.difference_update(ready)
    return parents


def _leaves_first(below: dict[int, list[int]]) -> list[int]:
    """Every session of the forest, each after the sessions below it."""
    roots = below.keys() - {pid for victims in below.values() for pid in victims}
    order, stack = [], sorted(roots)
    while stack:
        pid = stack.pop()
        order.append(pid)
        stack.extend(below.get(pid, ()))
    return order[::-1]


def _locks(connection: Connection, pids: Iterable[int]) -> tuple[Lock, ...]:
    names = {(row["class"], row["object"]): row["name"] for row in fetch(connection, ADVISORY_NAMES)}
    rows = fetch(connection, LOCKS, {"pids": list(pids), "limit": LOCK_CAP})
    return tuple(
        Lock(
            row["pid"], row["locktype"], row["mode"], row["granted"], row["relation"], _name(row, names),
            row["wait_seconds"],
        )
        for row in rows
    )  # fmt: skip


def _name(row: dict[str, Any], names: dict[tuple[int, int], str]) -> str | None:
    if row["locktype"] == "advisory":
        default = f"{row['class']}, {row['object']}" if row["form"] == 2 else str(row["class"] << 32 | row["object"])
        return names.get((row["class"], row["object"]), default)
    return row["transaction"]
