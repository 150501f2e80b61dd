"""Find what a test leaves behind: workers, named locks, advisory locks, and open transactions on the queue's tables."""

import threading
import time
from contextlib import closing
from typing import Any, NamedTuple

import psycopg
from django.db import DatabaseError, InterfaceError, connection, connections
from django.db.backends.base.creation import TEST_DATABASE_PREFIX

from tasks.support.database import DJANGO_KEYS, Connection, execute, fetch

# The server ends the session of a process that has just been ended within milliseconds, on a busy machine later.
PATIENCE_SECONDS = 2.0
PAUSE_SECONDS = 0.05
THREAD_OF_A_LOCK = "lock "  # and the lock's name

OPEN_TRANSACTION = "open transaction"

# In a transaction, pg_stat_activity shows for ever what it showed first.
LOOK_AGAIN = "SELECT pg_stat_clear_snapshot()"

# Between tests that commit, Django empties every table. The audit's trigger refuses that.
LET_TESTS_EMPTY_THE_AUDIT = "ALTER TABLE tasks_intervention DISABLE TRIGGER rowlock_never_emptied"
_may_be_emptied: set[str] = set()  # databases

# The next TRUNCATE would wait for it for ever, and nobody would read its name.
END_TRANSACTION = "SELECT pg_terminate_backend(%(session_pid)s::int)"

# A session proves more than a row, so it comes later: rows of a test may go with its transaction.
FIND = """
WITH held AS MATERIALIZED (
    SELECT lock.pid, bool_or(lock.locktype = 'advisory') AS is_advisory,
        string_agg(DISTINCT named.relname, ', ') AS tables
    FROM pg_locks AS lock
    LEFT JOIN pg_class AS named ON lock.locktype = 'relation' AND named.oid = lock.relation
        AND named.relkind = 'r' AND starts_with(named.relname, 'tasks_')
    WHERE lock.granted AND lock.pid <> ALL(%(own_pids)s::int[]) AND lock.pid <> pg_backend_pid()
      AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    GROUP BY lock.pid
)
SELECT 'worker' AS kind, id AS name, format('pid %%s on %%s', pid, hostname) AS detail, NULL::int AS session_pid
FROM tasks_worker WHERE stopped_at IS NULL
UNION ALL
SELECT 'named lock', name, format('fence %%s', fence), NULL
FROM tasks_lock WHERE owner IS NOT NULL AND expires_at > clock_timestamp()
UNION ALL
SELECT CASE WHEN session.is_worker THEN 'worker' WHEN session.is_lock THEN 'named lock'
        WHEN held.is_advisory THEN 'advisory lock' ELSE 'open transaction' END,
    CASE WHEN session.is_worker THEN split_part(session.name, ':', 3)
        WHEN session.is_lock THEN regexp_replace(substr(session.name, 14), '@(worker|cmd|lab|web)(:.*)?$', '')
        ELSE format('of session %%s', held.pid) END,
    CASE WHEN session.is_worker OR session.is_lock THEN format('session %%s', held.pid)
        WHEN held.is_advisory THEN format('application_name %%L', session.name)
        ELSE format('locks on %%s', held.tables) END, held.pid
FROM held CROSS JOIN LATERAL (
    SELECT application_name AS name, starts_with(application_name, 'rowlock:worker:') AS is_worker,
        starts_with(application_name, 'rowlock:lock:') AS is_lock
    FROM pg_stat_activity WHERE pg_stat_activity.pid = held.pid AND backend_type = 'client backend') AS session
WHERE held.is_advisory OR held.tables IS NOT NULL
ORDER BY session_pid NULLS FIRST
"""


class LeftBehind(AssertionError):
    """A test left a worker, a lock or an open transaction behind."""


class Leftover(NamedTuple):
    """`is_row`: only a row of the database says so, and no session or thread."""

    detail: str
    session_pid: int | None = None
    is_row: bool = False


Found = dict[tuple[str, str], Leftover]  # by kind and name


class Watch:
    """Remembers what is there now; `check` raises LeftBehind for what has come since and stays.

    Some projects test on a database that others use too: there it does nothing.
    """

    def __init__(self) -> None:
        self.name: str = connection.settings_dict["NAME"]
        self.is_ours = self.name.startswith(connection.settings_dict["TEST"]["NAME"] or TEST_DATABASE_PREFIX)
        self.before = _find(connection) if self.is_ours else {}
        if self.is_ours and not connection.in_atomic_block and self.name not in _may_be_emptied:
            execute(connection, LET_TESTS_EMPTY_THE_AUDIT)
            _may_be_emptied.add(self.name)

    def check(self) -> None:
        """Name what is left. Ask before Django rolls back the test's transaction or empties its tables."""
        if not self.is_ours:
            return
        try:
            suspects = self._new(connection)
        except (DatabaseError, InterfaceError):  # the test broke its transaction, or closed its connection
            suspects = None
        if suspects is None or suspects:
            suspects = self._confirmed(suspects)
        if suspects:
            names = "".join(f"\n- {kind} {name} ({found.detail})" for (kind, name), found in sorted(suspects.items()))
            raise LeftBehind(f"The test left behind:{names}\nEnd it before the test ends.")

    def _new(self, asked: Connection) -> Found:
        return {key: found for key, found in _find(asked).items() if key not in self.before}

    def _confirmed(self, suspects: Found | None) -> Found:
        """The leftovers that another session still sees after a while; open transactions are ended.

        That session does not see the rows of the test's own transaction. Without one, Django empties the tables.
        """
        rows_stay = connection.in_atomic_block
        params = {key: value for key, value in connection.get_connection_params().items() if key not in DJANGO_KEYS}
        deadline = time.monotonic() + PATIENCE_SECONDS
        with closing(psycopg.connect(**params, autocommit=True)) as other:
            while True:
                there = {key: found for key, found in self._new(other).items() if rows_stay or not found.is_row}
                suspects = {key: found for key, found in there.items() if suspects is None or key in suspects}
                if not suspects or time.monotonic() > deadline:
                    break
                time.sleep(PAUSE_SECONDS)
            for (kind, _), found in suspects.items():
                if kind == OPEN_TRANSACTION:
                    fetch(other, END_TRANSACTION, {"session_pid": found.session_pid})
        return suspects


class NothingLeftBehind:
    """Mixin for Django's TestCase and TransactionTestCase: a test that leaves something behind fails with its name.

    It also lets Django empty the audit between the tests of a TransactionTestCase. With pytest-django the plugin does
    both for every test.
    """

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        watch_case(self)


def watch_case(case: Any) -> None:
    """Check after the test's own clean-up: what is registered first is called last."""
    case.addCleanup(Watch().check)


def _find(asked: Connection) -> Found:
    own = [each.connection for each in connections.all(initialized_only=True) if each.vendor == "postgresql"]
    execute(asked, LOOK_AGAIN)
    rows = fetch(asked, FIND, {"own_pids": [each.info.backend_pid for each in own if each and not each.closed]})
    found: Found = {}
    for row in rows:
        key, pid = (row["kind"], row["name"]), row["session_pid"]
        detail = found[key].detail if key in found else row["detail"]
        found[key] = Leftover(detail, pid, is_row=pid is None)
    for thread in threading.enumerate():
        if thread.name.startswith(THREAD_OF_A_LOCK):
            found["named lock", thread.name.removeprefix(THREAD_OF_A_LOCK)] = Leftover("taken in this process")
    return found
