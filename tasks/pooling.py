"""A session of our own, or a clear refusal behind a transaction-pooling proxy, which shares sessions (fault F10).

Presence, a sender's lock and LISTEN belong to a session. Behind such a proxy they would stay in a session that another
client gets next. Dead workers would seem alive as long as the pool lasts, and nobody would be woken.
"""

from contextlib import closing

import psycopg

from tasks.database import connect_directly, fetch
from tasks.exceptions import PooledSession

PID = "SELECT pg_backend_pid() AS pid"
LOOKS = 2
# PgBouncer's error for the limits that each of these sessions sets.
REFUSED_OPTIONS = "unsupported startup parameter"


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
    if connection.info.backend_pid == _pid(connection):
        return False
    with closing(connect_directly("rowlock:check")) as other:
        clients = [connection, other, other, connection] * LOOKS
        seen = {(client is other, _pid(client)) for client in clients}
    return len(seen) > 2 or len({pid for _, pid in seen}) < 2


def _pid(connection: psycopg.Connection) -> int:
    pid: int = fetch(connection, PID)[0]["pid"]
    return pid
