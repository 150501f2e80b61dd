"""Django's connections, which handlers use: between two tasks none may be broken or inside a transaction."""

import threading
from collections.abc import Sequence

from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

_opened: list[BaseDatabaseWrapper] | None = None


def watch() -> None:
    """Note what the main thread opens from now on: asking Django for it took two microseconds a task."""
    global _opened
    _opened = list(connections.all(initialized_only=True))
    connection_created.connect(_note, dispatch_uid="rowlock:worker")


def _note(connection: BaseDatabaseWrapper, **_: object) -> None:
    if _opened is not None and connection not in _opened and threading.current_thread() is threading.main_thread():
        _opened.append(connection)


def opened() -> Sequence[BaseDatabaseWrapper]:
    """This thread's connections; those that were never used may be missing."""
    return connections.all(initialized_only=True) if _opened is None else tuple(_opened)


def begin_anew() -> None:
    """What a request does for a view: handlers find no connection that is too old or broken, and no query log grows."""
    if any(connection.connection is not None for connection in opened()):
        close_old_connections()
        reset_queries()


def leave_no_transaction_open() -> None:
    """A handler that returns inside a transaction has not saved its work: say so, as a failure of the task."""
    for connection in opened():
        if is_closed(connection):
            forget(connection)
        elif is_in_transaction(connection):
            forget(connection)
            raise RuntimeError(
                f"The handler returned with a transaction open on database {connection.alias!r}, so its writes are "
                "lost. Commit it, or use transaction.atomic()."
            )


def close_broken() -> None:
    """After a failure no transaction and no lost session of the handler may reach the next task.

    Asks for no new session: the database may be away.
    """
    for connection in opened():
        if connection.in_atomic_block or is_closed(connection) or is_in_transaction(connection):
            forget(connection)
        else:
            connection.close_if_unusable_or_obsolete()


def is_closed(connection: BaseDatabaseWrapper) -> bool:
    return bool(getattr(connection.connection, "closed", False))


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    return connection.connection is not None and not connection.get_autocommit()


def forget(connection: BaseDatabaseWrapper) -> None:
    """Close the session, and with it forget its wrapper: closed inside an atomic block it would never open again."""
    connection.close()
    if connections[connection.alias] is connection:
        del connections[connection.alias]
    if _opened is not None and connection in _opened:
        _opened.remove(connection)
