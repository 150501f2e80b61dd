"""Cancelling a backend's query, or ending its session: only the very backend that the operator saw."""

from datetime import datetime
from typing import Any

from django.db import connection, transaction

from dashboard.identity import identify
from tasks import audit
from tasks.audit import Change, Who
from tasks.database import fetch
from tasks.exceptions import RowlockError

# A pid is used again by later backends, so its start must match; read and signalled in one statement.
FIND = """
SELECT pid, backend_start, coalesce(application_name, '') AS application_name, usename AS role, state,
    backend_start = %(started)s::timestamptz AS is_same,
    datname = current_database() AS is_of_this_database,
    pid = pg_backend_pid() AS is_me
FROM pg_stat_activity WHERE pid = %(pid)s::int AND backend_type = 'client backend'
"""
CANCEL = """
SELECT pg_cancel_backend(pid) AS signalled FROM pg_stat_activity
WHERE pid = %(pid)s::int AND backend_start = %(started)s::timestamptz AND datname = current_database()
"""
TERMINATE = """
SELECT pg_terminate_backend(pid) AS signalled FROM pg_stat_activity
WHERE pid = %(pid)s::int AND backend_start = %(started)s::timestamptz AND datname = current_database()
"""
ACTIONS = {"cancel": CANCEL, "terminate": TERMINATE}


MISSING_GRANT = (
    "This role may not signal backend %d: GRANT pg_signal_backend to it; the sessions of a superuser can be "
    "signalled by a superuser only."
)


class NotSignalled(RowlockError):
    """The backend was not signalled."""


def signal(pid: int, started: datetime, action: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Send the signal and leave an intervention; False when the backend ended by itself in that moment.

    `started` is the `backend_start` that the operator saw; `action` is `cancel` (its query) or `terminate` (its
    session). Raises NotSignalled for a backend that is gone, is another one by now, belongs to another database or is
    the dashboard's own, and psycopg's InsufficientPrivilege (as ProgrammingError) when the role may not.
    """
    found = fetch(connection, FIND, {"pid": pid, "started": started})
    if problem := _problem(pid, found):
        raise NotSignalled(problem)
    if dry_run:
        return True
    with transaction.atomic():
        rows = fetch(connection, ACTIONS[action], {"pid": pid, "started": started})
        if rows:
            identity = identify(found[0]["application_name"])
            audit.record(connection, who, f"{action} {identity}", [Change(f"backend:{pid}")], reason)
    return bool(rows and rows[0]["signalled"])


def _problem(pid: int, found: list[dict[str, Any]]) -> str:
    if not found:
        return f"No backend has the pid {pid} any more: it has ended, and its locks are free."
    backend = found[0]
    if not backend["is_same"]:
        return (
            f"The pid {pid} belongs to another backend by now, started {backend['backend_start'].isoformat()}: the one "
            "that you saw has ended. Nothing was signalled; look at the locks again."
        )
    if not backend["is_of_this_database"]:
        return f"Backend {pid} works on another database; signal it from there."
    if backend["is_me"] or identify(backend["application_name"]).kind == "web":
        return f"Backend {pid} is the dashboard's own; ending it would end this page, not the problem."
    return ""
