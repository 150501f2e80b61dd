"""Connections of the worker itself, and reading rows from either kind of connection."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import atomic, set_rollback
from psycopg.pq import TransactionStatus

from tasks import conf

# Not psycopg's but Django's own keys of OPTIONS.
DJANGO_KEYS = ("cursor_factory", "context", "prepare_threshold", "server_side_binding", "pool", "assume_role")
# Within half a second the server notices that the worker died inside a query.
NOTICE_DEATH = "-c client_connection_check_interval=500ms"
# Giving up a lock that somebody else holds, and whatever takes too long.
PATIENCE = "-c lock_timeout=1s -c statement_timeout=30s"
# The statistics of a queue are those of another moment. With an empty table's, 200,000 new tasks made each claim read
# all of them (200 ms instead of 2), and 20,000 new ordering keys cost a second. These statements know their indexes.
# Nor do plans for these very values: where the statistics know no claimed row, 500 completions were joined to each row
# of the table (110 microseconds a task instead of 9), until the plan for any values was found to be cheaper.
PLANS = (
    "-c jit=off -c plan_cache_mode=force_generic_plan "
    "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
)
# Claims and completions look again at a row that changed while they waited for it. At REPEATABLE READ, which may be the
# default of a server or a role, they fail instead.
READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
WORKER_SESSION = f"{NOTICE_DEATH} {PATIENCE} {READ_COMMITTED} {PLANS}"
KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
# Shorter, a session would end in an outage that a supervisor need not have noticed (STALL_SECONDS of the supervisor).
SHORTEST_SILENCE_MS, LONGEST_SILENCE_MS = 2_000, 10_000

# The server itself ends a statement of a worker's session after 30 s; one that still is silent then will not answer.
ANSWER_SECONDS = 40.0
LONGEST_IDLE_SECONDS = 30.0


class Connection(Protocol):
    """Django's connection wrapper or psycopg's own connection: what the SQL of this app needs of either."""

    def cursor(self) -> Any: ...


class PromptConnection(psycopg.Connection):
    """A connection that is given up when the server leaves a question unanswered for `answer_seconds`.

    Neither keepalives nor tcp_user_timeout can see a proxy that takes every byte and passes none on.
    """

    answer_seconds = ANSWER_SECONDS

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """As psycopg's own, which waits for ever. Raises psycopg.OperationalError, and the connection is closed."""
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.answer_seconds)
        except psycopg.errors._WaitTimeout as error:
            # Left open it would wait as long again for the end of the transaction.
            self.pgconn.finish()
            raise psycopg.OperationalError(f"the server was silent for {self.answer_seconds:g} s") from error


def fetch(connection: Connection, sql: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The rows of one statement, each as a dictionary by column name."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return rows_of(cursor)


def rows_of(cursor: Any) -> list[dict[str, Any]]:
    """What a statement that was executed has answered, each row as a dictionary by column name."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@contextmanager
def transaction(connection: Connection, *, rollback: bool = False) -> Iterator[None]:
    """A transaction on either kind of connection; with `rollback` nothing of it stays (a dry run)."""
    if isinstance(connection, psycopg.Connection):
        with connection.transaction(force_rollback=rollback):
            yield
        return
    alias = connection.alias  # type: ignore[attr-defined]
    with atomic(using=alias):
        yield
        if rollback:
            set_rollback(True, using=alias)


def statement(connection: Connection) -> AbstractContextManager[None]:
    """Around one statement that may fail: a savepoint within a transaction.

    Outside of one a statement is a transaction of its own, and nothing is asked of the server beside it.
    """
    if isinstance(connection, psycopg.Connection):
        is_alone = connection.autocommit and connection.pgconn.transaction_status == TransactionStatus.IDLE
    else:
        is_alone = connection.get_autocommit() and not connection.in_atomic_block  # type: ignore[attr-defined]
    return nullcontext() if is_alone else transaction(connection)


def notice_vanishing(*, reads_at_once: bool) -> str:
    """Options by which the server itself ends a session of which nothing was heard for about a lease.

    A host that lost its power or its network closes nothing. By the system's default the server would keep its row
    locks for two hours, and nobody could take back the task whose row is among them. Who does not read what was sent
    has vanished too, but for a handler that works on each row of a stream: `reads_at_once` is to be false for it.
    """
    lease: float = conf.get("LEASE_SECONDS")
    idle, interval = (max(1, int(part)) for part in (lease * 2 / 3, lease / 6))
    keepalives = f"-c tcp_keepalives_idle={idle} -c tcp_keepalives_interval={interval} -c tcp_keepalives_count=2"
    return f"{keepalives} -c tcp_user_timeout={idle + 2 * interval}s" if reads_at_once else keepalives


def notice_a_dead_path(params: Mapping[str, Any]) -> dict[str, Any]:
    """`params` with the options of libpq by which a worker gives up a dead network path within a third of its lease,
    but never within 2 s.

    So it has time to connect again. With a NOTIFY pending, keepalives alone held a lock for over 75 s.
    """
    silence = min(LONGEST_SILENCE_MS, max(SHORTEST_SILENCE_MS, int(1000 * conf.get("LEASE_SECONDS") / 3)))
    return {**KEEPALIVES, **params, "tcp_user_timeout": min(silence, int(params.get("tcp_user_timeout") or silence))}


def end_what_stands_still() -> str:
    """The option by which a process that was frozen in the middle of a claim or a sweep lets go of its rows.

    Without it they were passed over, though its lease had ended, until 30 s were over. Here no transaction waits for a
    handler, so that none lasts as long as a lease.
    """
    milliseconds = 1000 * min(conf.get("LEASE_SECONDS"), LONGEST_IDLE_SECONDS)
    return f"-c idle_in_transaction_session_timeout={milliseconds:.0f}"


def connect_directly(
    application_name: str, *, connect_timeout: int = 10, answer_seconds: float = ANSWER_SECONDS
) -> psycopg.Connection:
    """A connection of the worker's own, in autocommit, past a pooling proxy when DIRECT_DATABASE_URL says how.

    It is apart from Django's connection, so that nothing a handler does to its session (a failed transaction, SET,
    LISTEN) can reach the claim, the flush or the worker's presence. A server that leaves a question unanswered for
    `answer_seconds` is given up. Raises psycopg.OperationalError.
    """
    url = conf.get("DIRECT_DATABASE_URL")
    params = {} if url else _params_of_default_database()
    ending = (notice_vanishing(reads_at_once=True), end_what_stands_still())
    options = " ".join(filter(None, (params.pop("options", ""), WORKER_SESSION, *ending)))
    connection = PromptConnection.connect(
        url,
        autocommit=True,
        **{
            **notice_a_dead_path(params),
            "connect_timeout": connect_timeout,
            "options": options,
            "application_name": application_name,
        },
    )
    connection.answer_seconds = answer_seconds
    return connection


def name_sessions_of_handlers(application_name: str) -> None:
    """In a worker process, before its first query: how Django's own connection appears in `pg_stat_activity`.

    When the process is killed in the middle of a query, its row locks end within half a second and not with the query;
    when its host vanishes, with its lease. But a pooling proxy would not let these options pass: there the level of
    isolation is said with each BEGIN.
    """
    settings = connections["default"].settings_dict
    options = {**notice_a_dead_path(settings["OPTIONS"]), "application_name": application_name}
    if not conf.get("DIRECT_DATABASE_URL"):
        ours = (NOTICE_DEATH, READ_COMMITTED, notice_vanishing(reads_at_once=False))
        options["options"] = " ".join(filter(None, (options.get("options"), *ours)))
    settings["OPTIONS"] = options
    connection_created.connect(_begin_read_committed, dispatch_uid=READ_COMMITTED)


@contextmanager
def read_committed() -> Iterator[None]:
    """Django's default connection, when it is opened in here, begins its transactions at READ COMMITTED."""
    connection_created.connect(_begin_read_committed, dispatch_uid=READ_COMMITTED)
    try:
        yield
    finally:
        connection_created.disconnect(dispatch_uid=READ_COMMITTED)


def _begin_read_committed(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Costs no query: the driver says the level with each BEGIN. One that the settings name is kept."""
    if connection.alias == "default" and "isolation_level" not in connection.settings_dict["OPTIONS"]:
        connection.connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


def _params_of_default_database() -> dict[str, Any]:
    params = connections["default"].get_connection_params()
    return {key: value for key, value in params.items() if key not in DJANGO_KEYS}
