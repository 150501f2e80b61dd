"""Cancel a backend's query or end its session, but only the very backend that the operator saw."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.utils.translation import gettext as _

from dashboard.locks import attribution, tree
from dashboard.locks.attribution import Behind, RunningTask
from dashboard.locks.identity import identify
from dashboard.locks.tree import Session
from tasks.exceptions import RowlockError
from tasks.panels import Snapshot
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch

INSUFFICIENT_PRIVILEGE = "42501"
AGAIN_SECONDS = 3.0  # the same signal to the same backend within this time is a double click

# Pids are reused, so the start must match. The rights follow pg_signal_backend: only a superuser may signal a
# superuser's session; any other takes the session's own role or that grant.
FIND = """
SELECT pid, backend_start, coalesce(application_name, '') AS application_name, usename AS role, state, backend_type,
    backend_start = %(started)s::timestamptz AS is_same,
    datname IS NOT DISTINCT FROM current_database() AS is_of_this_database,
    pid = pg_backend_pid() AS is_me, current_user AS my_role,
    coalesce((SELECT rolsuper FROM pg_roles WHERE rolname = usename), true)
        AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS is_out_of_reach,
    coalesce(pg_has_role(usename, 'USAGE'), false) OR pg_has_role('pg_signal_backend', 'USAGE') AS may_be_signalled
FROM pg_stat_activity WHERE pid = %(pid)s::int
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

# One at a time for each pid, so that the second of two clicks sees the effect of the first.
ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('rowlock:signal'), %(pid)s::int)"
LATELY = """
SELECT actor FROM tasks_intervention
WHERE target = %(target)s::text AND split_part(action, ' ', 1) = %(action)s::text
  AND at > greatest(%(started)s::timestamptz, clock_timestamp() - make_interval(secs => %(seconds)s::float8))
ORDER BY id DESC LIMIT 1
"""


class NotSignalled(RowlockError):
    """The backend was not signalled."""


class AlreadySignalled(NotSignalled):
    """The same signal was sent a moment ago."""


class Ended(RowlockError):
    """The backend ended by itself at that moment; raising this rolls the intervention back."""


def signal(pid: int, started: datetime, action: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Send the signal and record an intervention; False if the backend ended by itself at that moment.

    `started`: the `backend_start` that the operator saw; `action`: `cancel` (its query) or `terminate` (its session).
    Raises NotSignalled if the backend is gone, was replaced, or is no client of this database. It also does so for the
    dashboard's own sessions and those beyond this role's rights. Raises AlreadySignalled for a double click, and
    psycopg's InsufficientPrivilege (as ProgrammingError) if the server refuses for another reason.
    """
    found = fetch(connection, FIND, {"pid": pid, "started": started})
    if problem := problem_with(pid, found):
        raise NotSignalled(problem)
    if dry_run:
        return True
    try:
        with transaction.atomic():
            _refuse_twice(pid, started, action)
            what = f"{action} {identify(found[0]['application_name'])}"
            audit.record(connection, who, what, [Change(f"backend:{pid}")], reason)
            sent = fetch(connection, ACTIONS[action], {"pid": pid, "started": started})
            if not (sent and sent[0]["signalled"]):
                raise Ended
    except Ended:
        return False
    return True


def missing_grant(pid: int) -> str:
    """The message if the server itself refuses for lack of a privilege."""
    return _(
        "This role may not signal backend %(pid)d: GRANT pg_signal_backend to it; the sessions of a superuser can be "
        "signalled by a superuser only."
    ) % {"pid": pid}  # fmt: skip


def problem_with(pid: int, found: list[dict[str, Any]]) -> str:
    if not found:
        return _("No backend has the pid %(pid)d any more: it has ended, and its locks are free.") % {"pid": pid}
    backend = found[0]
    if backend["backend_start"] is None:
        return _(
            "The database role %(my_role)s may not see when backend %(pid)d started, so it could be another one than "
            "you saw. GRANT pg_read_all_stats TO %(my_role)s, and look again."
        ) % backend  # fmt: skip
    if not backend["is_same"]:
        return _(
            "The pid %(pid)d belongs to another backend by now, started %(started)s: the one that you saw has ended. "
            "Nothing was signalled; look at the locks again."
        ) % {"pid": pid, "started": backend["backend_start"].isoformat()}  # fmt: skip
    return _refusal(backend)


def _refusal(backend: dict[str, Any]) -> str:
    """The reason why this kind of backend is never signalled, or why our role may not; empty if it may."""
    text = ""
    if backend["backend_type"] != "client backend":
        text = _(
            "Backend %(pid)d is no client but the server's own %(backend_type)s: replication, autovacuum and the like "
            "are not signalled from here."
        )
    elif not backend["is_of_this_database"]:
        text = _("Backend %(pid)d works on another database; signal it from there.")
    elif backend["is_me"] or identify(backend["application_name"]).kind == "web":
        text = _("Backend %(pid)d is the dashboard's own; ending it would end this page, not the problem.")
    elif backend["is_out_of_reach"]:
        text = _(
            "Backend %(pid)d belongs to the superuser %(role)s, whose sessions only a superuser can signal: no grant "
            "lets the role %(my_role)s do it."
        )
    elif not backend["may_be_signalled"]:
        text = _(
            "The database role %(my_role)s may not signal backend %(pid)d of role %(role)s: "
            "GRANT pg_signal_backend TO %(my_role)s."
        )
    return text % backend


def _refuse_twice(pid: int, started: datetime, action: str) -> None:
    fetch(connection, ONE_AT_A_TIME, {"pid": pid})
    params = {"target": f"backend:{pid}", "action": action, "started": started, "seconds": AGAIN_SECONDS}
    if lately := fetch(connection, LATELY, params):
        text = _("Backend %(pid)d was signalled a moment ago by %(actor)s; it was not signalled again.")
        raise AlreadySignalled(text % {"pid": pid, "actor": lately[0]["actor"]})


@dataclass(frozen=True)
class Consequences:
    """The effects of a signal to one session.

    `at_once`: sessions that wait for nobody else; `later`: those that also wait for others. `session` is None if it has
    ended; `problem` says why it would not be signalled.
    """

    session: Session | None
    at_once: tuple[Session, ...] = ()
    later: tuple[Session, ...] = ()
    work: Behind = field(default_factory=Behind)
    problem: str = ""


def foresee(pid: int, started: datetime) -> Consequences:
    """Foresee a signal to the session with this pid and start, as it is now."""
    page = attribution.lock_page(Snapshot())
    problem = problem_with(pid, fetch(connection, FIND, {"pid": pid, "started": started}))
    session = page.seen.by_pid.get(pid)
    if session is None or session.backend_start != started:
        return Consequences(None, problem=problem)
    node = tree.find_node(page.seen.roots, pid)
    victims = [page.seen.by_pid[victim] for victim in node.victim_pids()] if node else []
    return Consequences(
        session,
        at_once=tuple(victim for victim in victims if set(victim.blocked_by) <= {pid}),
        later=tuple(victim for victim in victims if not set(victim.blocked_by) <= {pid}),
        work=page.behind.get(pid, Behind()),
        problem=problem,
    )


def undone_work(session: Session, action: str) -> str:
    """The work that is rolled back."""
    if session.xact_start is None:
        return _("nothing: no transaction is open")
    if action == "cancel":
        return _(
            "the statement at hand. Its transaction stays open, with its locks, until the program ends it: if nobody "
            "goes on, terminate the session"
        )
    if session.has_written:
        return _("everything it wrote or locked in its transaction")
    return _("nothing that was written: so far its transaction has only read")


def consequence_for_task(task: RunningTask) -> str:
    """The consequence for the task whose worker's session is signalled."""
    if task.has_attempts_left:
        text = _(
            "Attempt %(number)d of %(of)d: if the statement was its own, the attempt fails and the task runs again "
            "after its backoff. What it did in the database is undone before; what it did outside (an e-mail, a call) "
            "may happen twice."
        )
    else:
        text = _(
            "Attempt %(number)d of %(of)d, its last: if the statement was its own, the task ends as FAILED, and a "
            "person decides whether it runs again."
        )
    return text % {"number": task.attempt, "of": task.max_attempts}
