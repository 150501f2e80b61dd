"""Waits for named locks as edges between sessions, because `pg_locks` does not show them.

Each holder and waiter has a session with an advisory lock (tasks/locking/named/postgres.py). That lock leads from its
row to its backend. A holder without one is an outsider: a program that calls the SQL functions, one behind a pooling
proxy, or one from before a restart. Locks in Redis are not included.

Two more kinds of edges close circles that the database cannot see. A waiter for one named lock may hold another. One
session of a worker may wait while another session of it blocks others.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from zlib import crc32

from dashboard.locks.limits import Names
from dashboard.locks.tree import NAMED, SAME_WORKER, Lock, Session, outsider
from tasks.locking.named import postgres
from tasks.locking.named.holder import Holder, Waiter
from tasks.support.database import fetch
from tasks.support.durations import spoken

CAP = 200

# Waiters briefly hold a presence lock in shared mode, so only the exclusive one is its owner's.
BACKENDS = """
SELECT asked.owner, lock.pid FROM unnest(%(owners)s::text[]) AS asked (owner)
JOIN pg_locks AS lock ON lock.objid::bigint = rowlock_lock_presence(asked.owner)
WHERE lock.locktype = 'advisory' AND lock.objsubid = 2 AND lock.granted AND lock.mode = 'ExclusiveLock'
  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND lock.classid::bigint = (rowlock_lock_class()::bigint & 4294967295)
"""

WORKERS = """
SELECT id, hostname, pid FROM tasks_worker WHERE stopped_at IS NULL AND pid = ANY(%(pids)s::int[])
"""


@dataclass(frozen=True)
class Edge:
    """The session `lock.pid` waits for the session `blocker`, which may be an outsider."""

    lock: Lock
    blocker: int
    outsider: Session | None = None


@dataclass(frozen=True)
class Named:
    """Held locks and all waiters, with the backend of each owner."""

    holders: list[Holder]
    waiters: list[Waiter]
    backends: Mapping[str, int]


def edges(names: Names, sessions: Collection[Session]) -> list[Edge]:
    """The edges that named locks add, as far as their tables can be read; only one is read if nobody waits."""
    connection = names.connection
    waiters = names.ask(partial(postgres.waiters, connection, limit=CAP), "tasks_lockwaiter")
    if not waiters:
        return []
    locks = names.ask(partial(postgres.holders, connection, limit=CAP), "tasks_lock") or []
    holders = [holder for holder in locks if holder.is_held]
    owners = [waiter.owner for waiter in waiters] + [holder.owner for holder in holders]
    backends = {row["owner"]: row["pid"] for row in fetch(connection, BACKENDS, {"owners": owners})}
    named = Named(holders, waiters, backends)
    waits = list(_waits(named))
    return [*waits, *_held_meanwhile(named), *_same_worker(_workers(names, named, sessions), sessions, waits)]


def _waits(named: Named) -> Iterator[Edge]:
    """Edges from each waiter to the holder of its lock; a holder whose session cannot be found is an outsider."""
    holders = {holder.name: holder for holder in named.holders}
    for waiter in named.waiters:
        holder, pid = holders.get(waiter.name), named.backends.get(waiter.owner)
        if holder is None or pid is None:
            continue
        lock = Lock(pid, NAMED, holder.backend, False, None, waiter.name, waiter.waiting_seconds, waiter.since)
        if blocker := named.backends.get(holder.owner):
            yield Edge(lock, blocker)
            continue
        label = f"named lock {holder.name}, held by {holder.who}"
        if holder.seconds_left is not None:
            label += f", lease ends in {spoken(holder.seconds_left)} unless renewed"
        apart = outsider(-crc32(holder.name.encode()) - 1, label, holder.held_seconds)
        yield Edge(lock, apart.pid, apart)


def _held_meanwhile(named: Named) -> Iterator[Edge]:
    """Edges from a lock's session to the session in which its holder waits for another lock."""
    for waiter in named.waiters:
        waiting = named.backends.get(waiter.owner)
        for holder in named.holders:
            holding = named.backends.get(holder.owner)
            if holder.fence in waiter.holds and waiting and holding:
                yield Edge(Lock(holding, SAME_WORKER, "", False, name=f"its holder waits for {waiter.name}"), waiting)


def _same_worker(
    pids_of: Mapping[str, set[int]], sessions: Collection[Session], waits: Collection[Edge]
) -> Iterator[Edge]:
    """Edges from a worker's blocking sessions to the same worker's waiting sessions."""
    waiting = {session.pid for session in sessions if session.blocked_by} | {edge.lock.pid for edge in waits}
    blocking = {pid for session in sessions for pid in session.blocked_by} | {edge.blocker for edge in waits}
    for worker_id, pids in pids_of.items():
        for still in sorted((pids & blocking) - waiting):
            for stuck in sorted(pids & waiting):
                yield Edge(Lock(still, SAME_WORKER, "", False, name=f"worker {worker_id}"), stuck)


def _workers(names: Names, named: Named, sessions: Iterable[Session]) -> dict[str, set[int]]:
    """The pids of each worker with a named lock: its own sessions and those of its locks."""
    parties: list[Holder | Waiter] = [*named.holders, *named.waiters]
    processes = [party.pid for party in parties if party.pid]
    ask = partial(fetch, names.connection, WORKERS, {"pids": processes})
    rows = (names.ask(ask, "tasks_worker") or []) if processes else []
    ids = {(row["hostname"], row["pid"]): row["id"] for row in rows}
    pids_of: dict[str, set[int]] = {worker_id: set() for worker_id in ids.values()}
    for party in parties:
        worker_id, backend = ids.get((party.hostname, party.pid or 0)), named.backends.get(party.owner)
        if worker_id and backend:
            pids_of[worker_id].add(backend)
    for session in sessions:
        if session.identity.kind == "worker" and session.identity.name in pids_of:
            pids_of[session.identity.name].add(session.pid)
    return pids_of
