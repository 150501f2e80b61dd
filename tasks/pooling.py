"""A session of one's own, or a clear refusal: a transaction-pooling proxy lends each session to many clients (F10).

Presence, the lock of a sender and LISTEN belong to a session. Through such a proxy they stay behind in one that is
given to somebody else next: the dead would look alive for as long as the pool lasts, and nobody would be woken.
"""

from contextlib import closing

import psycopg

from tasks.database import connect_directly, fetch
from tasks.exceptions import PooledSession

PID = "SELECT pg_backend_pid() AS pid"
LOOKS = 2
# How PgBouncer answers the limits that each of these sessions comes with.
REFUSED_OPTIONS = "unsupported startup parameter"


def own_session(application_name: str, *, connect_timeout: int = 10) -> psycopg.Connection:
    """A direct connection whose session is nobody else's. Raises PooledSession, psycopg.OperationalError."""
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
    """Whether the statements of this connection (in autocommit) may reach now one session and now another.

    A server tells each client the process id of its backend, and a proxy one of its own making. Of proxies, those that
    keep a session for as long as the client stays do no harm: a second client is not given it meanwhile. The others
    give the session that was used last, or each in turn: so each client asks after the other, and after itself.
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
