"""A thread's Django connections, kept usable between two tasks: none inherits a transaction or a broken session."""

import threading
from collections.abc import Sequence

from django.db import Error, close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from tasks.support import tracing

RELAX = "SET synchronous_commit = off"
WAIT_FOR_DISK = "RESET synchronous_commit"


class _Thread(threading.local):
    """The connections that this thread opened, and if its commits may be lost in a crash."""

    opened: list[BaseDatabaseWrapper] | None = None
    is_relaxed = False


_thread = _Thread()


def watch() -> list[BaseDatabaseWrapper]:
    """Note the connections that this thread opens: asking Django for them took two microseconds a task."""
    _thread.opened = list(connections.all(initialized_only=True))
    for connection in _thread.opened:
        tracing.name_statements(connection)
    connection_created.connect(_note, dispatch_uid="rowlock:worker")
    return _thread.opened


def _note(connection: BaseDatabaseWrapper, **_: object) -> None:
    if _thread.opened is None:
        return
    if connection not in _thread.opened:
        _thread.opened.append(connection)
    tracing.name_statements(connection)
    if _thread.is_relaxed and connection.alias == "default":
        _set(connection, RELAX)


def opened() -> Sequence[BaseDatabaseWrapper]:
    """This thread's connections; those that were never used may be missing."""
    return connections.all(initialized_only=True) if _thread.opened is None else tuple(_thread.opened)


def relax(wanted: bool) -> None:
    """Let this thread's commits to the database of the tasks not wait for the disk, or wait as the session's default.

    A session that is opened later follows, and one that cannot be set is closed. Other databases are never relaxed: the
    order of their WAL proves nothing about ours.
    """
    if _thread.is_relaxed == wanted:
        return
    _thread.is_relaxed = wanted
    session = connections["default"]
    if session.connection is not None:
        try:
            _set(session, RELAX if wanted else WAIT_FOR_DISK)
        except Error:
            forget(session)


def _set(connection: BaseDatabaseWrapper, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def leave_no_transaction_open() -> None:
    """Raise RuntimeError after a handler that returned inside a transaction: its work is not saved."""
    for used in opened():
        if is_closed(used):
            forget(used)
        elif is_in_transaction(used):
            forget(used)
            raise RuntimeError(
                f"The handler returned with a transaction open on database {used.alias!r}, so its writes are "
                "lost. Commit it, or use transaction.atomic()."
            )


def is_closed(connection: BaseDatabaseWrapper) -> bool:
    return bool(getattr(connection.connection, "closed", False))


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    return connection.connection is not None and not connection.get_autocommit()


def forget(connection: BaseDatabaseWrapper) -> None:
    """Close the session, and with it forget its wrapper: closed inside an atomic block it would never open again."""
    connection.close()
    if connections[connection.alias] is connection:
        del connections[connection.alias]
    if _thread.opened is not None and connection in _thread.opened:
        _thread.opened.remove(connection)


def refresh() -> None:
    """Do what a request does for a view: close connections that are too old or broken, and empty query logs."""
    if any(connection.connection is not None for connection in opened()):
        close_old_connections()
        reset_queries()


def clean_up() -> None:
    """Close what a failed handler left in a transaction or lost, so that the next task does not meet it.

    This opens no new session: the database may be away.
    """
    for used in opened():
        if used.in_atomic_block or is_closed(used) or is_in_transaction(used):
            forget(used)
        else:
            used.close_if_unusable_or_obsolete()
