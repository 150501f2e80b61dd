"""Name the sessions behind a lock that a statement has met.

Catalogs alone tell, so no lock on our own tables hides them.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg
from django.core.management import get_commands
from django.db import Error, connections
from django.db.migrations.recorder import MigrationRecorder
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from psycopg import sql

from tasks.diagnosis.finding import command
from tasks.support.database import Connection, fetch, session_name, sqlstate, transaction
from tasks.support.durations import spoken
from tasks.support.reading import one_line
from tasks.support.redacted_sql import redact_query

logger = logging.getLogger(__name__)

MET = ("55P03", "57014")  # lock timeout or NOWAIT, statement timeout
LONGEST_QUERY = 120
# PostgreSQL names the table of a locked row; it does not name a locked table.
ROW_OF = re.compile(r"(?:tuple \(\d+,\d+\)|row) in relation \"([^\"]+)\"")

LIMIT = "SELECT set_config('statement_timeout', '1s', true), set_config('lock_timeout', '200ms', true)"

# A migration that waits for a reader makes everybody behind it wait. So waiting locks count too, and the chain goes on
# to those who block them. Only a session with a transaction id can hold a row.
HOLDERS = """
WITH RECURSIVE ours AS MATERIALIZED (
    SELECT to_regclass(quote_ident(name))::oid AS id, name FROM unnest(%(tables)s::text[]) AS name
), seen AS MATERIALIZED (
    SELECT pid, locktype, database, relation, mode, granted FROM pg_locks WHERE pid IS DISTINCT FROM pg_backend_pid()
), met AS MATERIALIZED (
    SELECT coalesce(seen.pid, 0) AS pid,
        coalesce(array_agg(DISTINCT ours.name) FILTER (WHERE seen.granted), '{}') AS holds,
        coalesce(array_agg(DISTINCT ours.name) FILTER (WHERE NOT seen.granted), '{}') AS awaits
    FROM seen JOIN ours ON ours.id = seen.relation
    WHERE seen.locktype = 'relation'
      AND seen.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (seen.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
        OR %(is_row)s::boolean AND seen.granted AND seen.mode IN ('RowShareLock', 'RowExclusiveLock')
          AND EXISTS (SELECT FROM seen AS own WHERE own.pid IS NOT DISTINCT FROM seen.pid AND own.granted
            AND own.locktype = 'transactionid' AND own.mode = 'ExclusiveLock'))
    GROUP BY coalesce(seen.pid, 0)
), chain (pid, blocked_by) AS (
    SELECT pid, pg_blocking_pids(pid) FROM met
    UNION
    SELECT blocker, pg_blocking_pids(blocker) FROM chain, unnest(chain.blocked_by) AS blocker
)
SELECT chain.pid, chain.blocked_by, coalesce(met.holds, '{}') AS holds, coalesce(met.awaits, '{}') AS awaits,
    %(is_row)s::boolean AS is_row, coalesce(activity.application_name, '') AS application_name,
    coalesce(activity.usename, '') AS role, coalesce(activity.backend_type, '') AS backend_type,
    activity.backend_start AS started, coalesce(activity.state, '') AS state,
    left(coalesce(activity.query, ''), 1000) AS query,
    coalesce(length(activity.query) > 1000 OR octet_length(activity.query) + 4 >= (
        SELECT setting::int FROM pg_settings WHERE name = 'track_activity_query_size'), false) AS is_cut,
    coalesce(activity.xact_start, prepared.since) AS since, coalesce(prepared.gids, '{}') AS gids,
    extract(epoch FROM clock_timestamp() - coalesce(activity.xact_start, prepared.since))::float8 AS seconds,
    quote_ident(current_user) AS viewer,
    activity.pid IS NOT NULL AND activity.backend_type IS NULL AS is_hidden
FROM chain LEFT JOIN met USING (pid) LEFT JOIN pg_stat_activity AS activity USING (pid)
LEFT JOIN (
    SELECT array_agg(gid ORDER BY prepared) AS gids, min(prepared) AS since
    FROM pg_prepared_xacts WHERE database = current_database()
) AS prepared ON chain.pid = 0
WHERE chain.pid <> pg_backend_pid()
ORDER BY cardinality(chain.blocked_by), coalesce(activity.xact_start, prepared.since), chain.pid
LIMIT 5
"""


@dataclass(frozen=True)
class Holder:
    """One session that holds a lock in the way, waits for one before us, or blocks a session that waits.

    `pid` is 0 for a prepared transaction (`gids`). `is_row`: it holds rows of the table. `blocked_by`: the pids that it
    waits for itself. A role without pg_read_all_stats (`viewer`) sees little more than pids: then it `is_hidden`.
    """

    pid: int
    blocked_by: list[int]
    holds: list[str]
    awaits: list[str]
    is_row: bool
    application_name: str
    role: str
    backend_type: str
    started: datetime | None
    state: str
    query: str
    is_cut: bool
    since: datetime | None
    gids: list[str]
    seconds: float | None
    viewer: str
    is_hidden: bool

    @property
    def sentence(self) -> str:
        """`pid 4711 · psql · user ann · holds tasks_task · idle in transaction · since … · LOCK TABLE …`."""
        blockers = ", ".join(map(str, dict.fromkeys(self.blocked_by)))
        parts = [
            _("pid %(pid)d") % {"pid": self.pid} if self.pid else " ".join((_("prepared transaction"), *self.gids)),
            self.application_name or self.backend_type,
            self.role and _("user %(role)s") % {"role": self.role},
            self.locks,
            blockers and _("blocked by pid %(pids)s") % {"pids": blockers},
            self.state,
            self.age,
            self.missing_grant or self.statement,
        ]
        return one_line(" · ".join(filter(None, parts)))

    @property
    def locks(self) -> str:
        """The tables that it holds, or else those that it waits for."""
        if self.holds:
            text = _("has locked rows of %(tables)s") if self.is_row else _("holds %(tables)s")
            return text % {"tables": ", ".join(self.holds)}
        text = _("waits for %(tables)s, and all others behind it")
        return text % {"tables": ", ".join(self.awaits)} if self.awaits else ""

    @property
    def age(self) -> str:
        if self.since is None or self.seconds is None:
            return ""
        at = f"{localtime(self.since):%Y-%m-%d %H:%M:%S %Z}"
        return _("since %(time)s (%(age)s)") % {"time": at, "age": spoken(self.seconds)}

    @property
    def statement(self) -> str:
        """The latest statement, short and redacted as on the page of locks."""
        text = " ".join(redact_query(self.query, is_cut=self.is_cut).split())
        return text if len(text) <= LONGEST_QUERY else text[: LONGEST_QUERY - 1] + "…"

    @property
    def missing_grant(self) -> str:
        """The right that would show the rest; empty if nothing is hidden."""
        if not self.is_hidden:
            return ""
        text = _("its state, its query and the command that ends it are hidden: GRANT pg_read_all_stats TO %(role)s")
        return text % {"role": self.viewer}

    @property
    def command(self) -> str:
        """The command that ends it; empty if it waits itself, or if nobody can end it from here."""
        if not self.pid:
            return f"ROLLBACK PREPARED {sql.Literal(self.gids[0]).as_string()};" if len(self.gids) == 1 else ""
        is_web = self.application_name == session_name("web")
        if self.blocked_by or is_web or self.backend_type != "client backend" or self.started is None:
            return ""
        if "signal_backend" not in get_commands():
            return f"select pg_terminate_backend({self.pid});"
        return command("signal_backend", str(self.pid), "--started", self.started.isoformat(), "--terminate")

    def __str__(self) -> str:
        return "\n  ".join(filter(None, (self.sentence, self.command)))


def is_met(error: BaseException) -> bool:
    """True if a lock may have stopped this statement."""
    return sqlstate(error) in MET


@contextmanager
def briefly(connection: Connection) -> Iterator[None]:
    """A transaction that waits 200 ms at most for any lock."""
    with transaction(connection):
        fetch(connection, LIMIT)
        yield


def holders(connection: Connection, error: BaseException) -> list[Holder]:
    """The sessions behind the lock that this error reports; empty if there is none any more."""
    if not is_met(error):
        return []
    of_row = ROW_OF.search(str(error))
    return of_tables(connection, of_row[1] if of_row else "")


def of_tables(connection: Connection, table_of_row: str = "") -> list[Holder]:
    """As `find`, within a short time; empty if the catalogs do not answer, for the caller has an error already."""
    try:
        with briefly(connection):
            return find(connection, table_of_row)
    except (Error, psycopg.Error) as problem:
        logger.warning("the holder of a lock could not be found: %s", " ".join(str(problem).split()))
        return []


def told(connection: Connection | None, error: BaseException) -> str:
    """The error in one line; if it met a lock, with those behind it and the commands that end them."""
    found = holders(connection, error) if connection is not None else []
    parts = ((holder.sentence, holder.command) for holder in found)
    return "; ".join([" ".join(str(error).split()), *(" · ".join(filter(None, part)) for part in parts)])


def find(connection: Connection, table_of_row: str = "") -> list[Holder]:
    """The sessions that keep others from our tables, or from a row of one; those that wait for nobody come first."""
    every = [*connections["default"].introspection.django_table_names(), MigrationRecorder.Migration._meta.db_table]
    params = {"tables": [table_of_row] if table_of_row else every, "is_row": bool(table_of_row)}
    return [Holder(**row) for row in fetch(connection, HOLDERS, params)]
