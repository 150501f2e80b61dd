"""SQL on either kind of connection, Django's or psycopg's, and connections with a session of their own.

Presence, a sender's lock and LISTEN belong to a session. A transaction-pooling proxy shares sessions (fault F10): there
they would stay in a session that another client gets next. Dead workers would seem alive as long as the pool lasts, and
nobody would be woken. So such a proxy is refused.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import datetime
from time import monotonic
from typing import Any, Protocol, TypeVar

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import atomic, set_rollback
from psycopg.pq import PipelineStatus, TransactionStatus

from tasks import conf
from tasks.exceptions import PooledSession

T = TypeVar("T")

PID = "SELECT pg_backend_pid() AS pid"
LONGEST_NAME = 63  # bytes of an application_name
OURS = "rowlock:"
# PgBouncer's error for the limits that each of these sessions sets.
REFUSED_OPTIONS = "unsupported startup parameter"

# Keys of OPTIONS that belong to Django, not to psycopg.
DJANGO_KEYS = ("cursor_factory", "context", "prepare_threshold", "server_side_binding", "pool", "assume_role")
# The server notices within half a second that a worker died inside a query.
NOTICE_DEATH = "-c client_connection_check_interval=500ms"
# Do not wait long for another session's lock, or for a slow statement.
PATIENCE = "-c lock_timeout=1s -c statement_timeout=30s"
# A queue's statistics are out of date. With those of an empty table, each claim read all of 200,000 new tasks (200 ms
# instead of 2). 20,000 new ordering keys cost a second. So only index scans and nested loops are allowed. Plans for
# particular values mislead too. Without a claimed row in the statistics, 500 completions were joined to the whole table
# (110 microseconds a task instead of 9). So plans are generic.
PLANS = (
    "-c jit=off -c plan_cache_mode=force_generic_plan "
    "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
)
# Claims and completions check a row again if it changed while they waited. At REPEATABLE READ, which a server or a role
# may have as default, they would fail instead.
READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
WORKER_SESSION = f"{NOTICE_DEATH} {PATIENCE} {READ_COMMITTED} {PLANS}"
KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
# Shorter, a session would end in an outage that a supervisor need not have noticed (STALL_SECONDS of the supervisor).
SHORTEST_SILENCE_MS, LONGEST_SILENCE_MS = 2_000, 10_000

# The server ends a worker's statement after 30 s; a server that is silent for longer will not answer.
ANSWER_SECONDS = 40.0
LONGEST_IDLE_SECONDS = 30.0


class Connection(Protocol):
    """Django's connection wrapper or psycopg's own connection: the part of both that the SQL of this app needs."""

    def cursor(self) -> Any: ...


class PromptConnection(psycopg.Connection):
    """A connection that is closed if the server does not answer within `answer_seconds`.

    Neither keepalives nor tcp_user_timeout detect a proxy that accepts every byte and forwards none.
    """

    answer_seconds = ANSWER_SECONDS

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Like psycopg's `wait`, but with a timeout: closes the connection and raises psycopg.OperationalError."""
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        deadline = monotonic() + self.answer_seconds
        try:
            return super().wait(gen, interval, self.answer_seconds)
        except psycopg.OperationalError as error:
            if error.sqlstate or monotonic() < deadline:
                raise  # the server answered, or the connection was lost
            # If left open, it would wait as long again for the end of the transaction.
            self.pgconn.finish()
            raise psycopg.OperationalError(f"the server was silent for {self.answer_seconds:g} s") from error


def fetch(connection: Connection, sql: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The rows of one statement, each as a dictionary by column name."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return rows_of(cursor)


def now(connection: Connection) -> datetime:
    """The database's clock, the only one that says what is due."""
    at: datetime = fetch(connection, "SELECT clock_timestamp() AS at")[0]["at"]
    return at


def execute(connection: Connection, sql: str, params: Mapping[str, Any] | None = None) -> int:
    """Run one statement; returns the number of rows that it changed."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        changed: int = cursor.rowcount
        return changed


def rows_of(cursor: Any) -> list[dict[str, Any]]:
    """The rows of an executed statement, each as a dictionary by column name."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of Django's or psycopg's error; None for anything else."""
    return getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)


def is_lock_not_available(error: BaseException) -> bool:
    """True if another session holds the row and the wait was refused or timed out."""
    return sqlstate(error) == "55P03"


def is_cancelled(error: BaseException) -> bool:
    """True if the statement was cancelled, by its timeout or by a person."""
    return sqlstate(error) == "57014"


def is_retryable(error: BaseException) -> bool:
    """True if the whole transaction can be repeated, after a serialization failure or a deadlock."""
    return sqlstate(error) in ("40001", "40P01")


@contextmanager
def transaction(connection: Connection, *, rollback: bool = False) -> Iterator[None]:
    """A transaction on either kind of connection; with `rollback` it is rolled back (a dry run)."""
    if isinstance(connection, psycopg.Connection):
        with connection.transaction(force_rollback=rollback):
            yield
    else:
        alias = connection.alias  # type: ignore[attr-defined]
        with atomic(using=alias):
            yield
            if rollback:
                set_rollback(True, using=alias)


def statement(connection: Connection) -> AbstractContextManager[None]:
    """A savepoint for one statement that may fail inside a transaction.

    Outside of one the statement is its own transaction, so nothing is sent for this.
    """
    if isinstance(connection, psycopg.Connection):
        is_alone = connection.autocommit and connection.pgconn.transaction_status == TransactionStatus.IDLE
    else:
        is_alone = connection.get_autocommit() and not connection.in_atomic_block  # type: ignore[attr-defined]
    return nullcontext() if is_alone else transaction(connection)


def notice_vanishing(*, reads_at_once: bool) -> str:
    """Options by which the server ends a session that is silent for about a lease.

    A host that lost its power or network closes nothing, and by default the server keeps its row locks for two hours.
    A client that does not read also counts as vanished. Handlers may pause between the rows of a stream, so they pass
    `reads_at_once=False`.
    """
    lease: float = conf.get("LEASE_SECONDS")
    idle, interval = (max(1, int(part)) for part in (lease * 2 / 3, lease / 6))
    keepalives = f"-c tcp_keepalives_idle={idle} -c tcp_keepalives_interval={interval} -c tcp_keepalives_count=2"
    return f"{keepalives} -c tcp_user_timeout={idle + 2 * interval}s" if reads_at_once else keepalives


def notice_a_dead_path(params: Mapping[str, Any]) -> dict[str, Any]:
    """`params` plus libpq options by which a worker gives up a dead path within a third of its lease, 2 s at least.

    That leaves time to reconnect. With a NOTIFY pending, keepalives alone held a lock for over 75 s.
    """
    silence = min(LONGEST_SILENCE_MS, max(SHORTEST_SILENCE_MS, int(1000 * conf.get("LEASE_SECONDS") / 3)))
    return {**KEEPALIVES, **params, "tcp_user_timeout": min(silence, int(params.get("tcp_user_timeout") or silence))}


def end_what_stands_still() -> str:
    """The option that releases the rows of a process that froze in the middle of a claim or a sweep.

    No transaction here waits for a handler, so none lasts as long as a lease.
    """
    milliseconds = 1000 * min(conf.get("LEASE_SECONDS"), LONGEST_IDLE_SECONDS)
    return f"-c idle_in_transaction_session_timeout={milliseconds:.0f}"


def connect_directly(
    application_name: str, *, connect_timeout: int = 10, answer_seconds: float = ANSWER_SECONDS
) -> psycopg.Connection:
    """The worker's own connection, in autocommit, past a pooling proxy if DIRECT_DATABASE_URL is set.

    It is separate from Django's, so that a handler's failed transaction, SET or LISTEN cannot affect it. It is closed
    if the server leaves a query unanswered for `answer_seconds`. Raises psycopg.OperationalError.
    """
    url = conf.get("DIRECT_DATABASE_URL")
    given = {} if url else connections["default"].get_connection_params()
    params = notice_a_dead_path({key: value for key, value in given.items() if key not in DJANGO_KEYS})
    ours = (WORKER_SESSION, notice_vanishing(reads_at_once=True), end_what_stands_still())
    params["options"] = " ".join(filter(None, (params.get("options"), *ours)))
    params |= {"connect_timeout": connect_timeout, "application_name": application_name}
    connection = PromptConnection.connect(url, autocommit=True, **params)
    connection.answer_seconds = answer_seconds
    return connection


def own_session(application_name: str, *, connect_timeout: int = 10) -> psycopg.Connection:
    """A direct connection with its own session. Raises PooledSession, psycopg.OperationalError."""
    try:
        connection = connect_directly(application_name, connect_timeout=connect_timeout)
    except psycopg.OperationalError as error:
        if REFUSED_OPTIONS in str(error):
            raise PooledSession from error
        raise
    if is_pooled(connection):
        connection.close()
        raise PooledSession
    return connection


def is_pooled(connection: psycopg.Connection) -> bool:
    """True if the statements of this connection (in autocommit) may reach different sessions.

    A server reports its backend's process id at login, a proxy one of its own. A proxy that keeps one session for each
    client does no harm: a second client never gets it. Other proxies give the session that was used last, or each in
    turn. So each of two clients asks for the process id after the other, and after itself.
    """
    if connection.info.backend_pid == fetch(connection, PID)[0]["pid"]:
        return False
    with closing(connect_directly("rowlock:check")) as other:
        clients = [connection, other, other, connection] * 2
        seen = {(client is other, fetch(client, PID)[0]["pid"]) for client in clients}
    return len(seen) > 2 or len({pid for _, pid in seen}) < 2


def session_name(kind: str, name: str = "", *, party: str = "") -> str:
    """The `application_name` of a session of ours; a name that is too long loses its end.

    Its length is counted as the server writes it: a non-ASCII byte takes four. `party` is the name of the process that
    uses the session; it is included if that process is one of ours.

    >>> session_name("worker", "7f3a"), session_name("web")
    ('rowlock:worker:7f3a', 'rowlock:web')
    >>> session_name("lock", "nightly", party="rowlock:cmd:run_locked")
    'rowlock:lock:nightly@cmd:run_locked'
    >>> session_name("lock", "nightly", party="report.py")
    'rowlock:lock:nightly'
    """
    start = f"{OURS}{kind}:" if name else f"{OURS}{kind}"
    end = f"@{party.removeprefix(OURS)}" if party.startswith(OURS) else ""
    while sum(1 if byte < 128 else 4 for byte in name.encode()) > LONGEST_NAME - len(start) - len(end):
        name = name[:-1]
    return f"{start}{name}{end}"


def name_of_this_process() -> str:
    """The application name of Django's sessions in this process."""
    return str(connections["default"].settings_dict.get("OPTIONS", {}).get("application_name", ""))


def name_session_of_command(command: str) -> None:
    """Name Django's connection in this process, unless the settings do; call it before the first query."""
    wrapper = connections["default"]
    if wrapper.vendor == "postgresql":
        wrapper.settings_dict["OPTIONS"].setdefault("application_name", session_name("cmd", command))


def name_sessions_of_handlers(application_name: str) -> None:
    """Name Django's own connection in `pg_stat_activity`; call it in a worker process before its first query.

    Its row locks end half a second after the process was killed, or with the lease if the host vanished. A pooling
    proxy would not accept these options; there each BEGIN sets the isolation level.
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
    """Within the block, a newly opened default connection begins its transactions at READ COMMITTED."""
    connection_created.connect(_begin_read_committed, dispatch_uid=READ_COMMITTED)
    try:
        yield
    finally:
        connection_created.disconnect(dispatch_uid=READ_COMMITTED)


def _begin_read_committed(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Costs no query: the driver adds the level to each BEGIN. A level from the settings is kept."""
    if connection.alias == "default" and "isolation_level" not in connection.settings_dict["OPTIONS"]:
        connection.connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


# A limit of the role's own stands.
LIMIT_LOCK_WAITS = "SELECT set_config('lock_timeout', '2s', false) WHERE current_setting('lock_timeout') = '0'"


@contextmanager
def short_lock_waits() -> Iterator[None]:
    """Within the block, a newly opened default connection waits 2 s at most for a lock, then fails with 55P03.

    Behind a pooling proxy the setting would stay in the session that another client gets next, so there it is left out.
    """
    connection_created.connect(_limit_lock_waits, dispatch_uid=LIMIT_LOCK_WAITS)
    try:
        yield
    finally:
        connection_created.disconnect(dispatch_uid=LIMIT_LOCK_WAITS)


def _limit_lock_waits(connection: BaseDatabaseWrapper, **_: object) -> None:
    if connection.alias == "default" and not conf.get("DIRECT_DATABASE_URL"):
        fetch(connection, LIMIT_LOCK_WAITS)


def send_query(
    connection: psycopg.Connection, sql: str, params: Mapping[str, Any]
) -> Callable[[], list[tuple[Any, ...]]]:
    """Send one statement like `pipelined`; its rows come in binary format, which is read in half the time."""
    answer = pipelined(connection, lambda: connection.execute(sql, params, binary=True))
    return lambda: answer().fetchall()


def pipelined(connection: psycopg.Connection, execute: Callable[[], T]) -> Callable[[], T]:
    """Send what `execute` does in a transaction of its own and go on; returns the function that reads the answer.

    Until then the connection takes nothing else. Only the reading raises psycopg.Error.
    """
    pipeline = connection.pipeline()
    result: list[T] = []
    failure: psycopg.Error | None = None
    try:
        pipeline.__enter__()
        connection.execute("BEGIN")
        result.append(execute())
        connection.execute("COMMIT")
    except psycopg.Error as error:  # of one statement, met while the next one was sent
        failure = error

    def read() -> T:
        met = failure
        try:
            pipeline.__exit__(None, None, None)
        except psycopg.Error as error:
            met = met or (error.__context__ if isinstance(error.__context__, psycopg.Error) else error)
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            connection.close()  # lost in the middle of an answer, it cannot even leave the pipeline
        elif not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
            connection.rollback()
        if met:
            raise met
        return result[0]

    return read
