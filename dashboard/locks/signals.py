"""Cancel a backend's query or end its session, but only the very backend that the operator saw."""

import logging
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import DatabaseError, connection
from django.utils.translation import gettext as _

from dashboard.locks import activity, attribution, tree
from dashboard.locks.attribution import Behind, RunningTask
from dashboard.locks.identity import identify
from dashboard.locks.limits import (
    AGAINST_WRITERS,
    NAME_MS,
    PERSON_STATEMENT_MS,
    STATEMENT_MS,
    TOO_SLOW,
    Unavailable,
    limited,
    locked_tables,
)
from dashboard.locks.tree import Session
from tasks.diagnosis.finding import command
from tasks.exceptions import RowlockError
from tasks.panels import Snapshot
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch, sqlstate
from tasks.support.redaction import redact

logger = logging.getLogger(__name__)

INSUFFICIENT_PRIVILEGE = "42501"
AUDIT = "tasks_intervention"
LATE_AUDIT_MS = 1000  # the ended session needs a moment to give up its locks
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


class NotAudited(RowlockError):
    """The backend was signalled, but the audit has no line of it."""


class Ended(RowlockError):
    """The backend ended by itself at that moment; raising this rolls the intervention back."""


def signal(pid: int, started: datetime, action: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Record an intervention and send the signal; False if the backend ended by itself at that moment.

    If another session locks the audit, the signal goes first, because that session may be the one to end. The line
    follows within a second. If it cannot, the log of this process gets it, and NotAudited is raised.

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
    line = AuditLine(pid, started, action, str(identify(found[0]["application_name"])), who, reason)
    try:
        with limited(connection):
            fetch(connection, ONE_AT_A_TIME, {"pid": pid})
            is_audited = line.record(wait_ms=NAME_MS)
            sent = fetch(connection, ACTIONS[action], {"pid": pid, "started": started})
            if not (sent and sent[0]["signalled"]):
                raise Ended
            is_audited = is_audited or line.record(wait_ms=LATE_AUDIT_MS)
    except Ended:
        return False
    if not is_audited:
        raise NotAudited(line.log_instead())
    return True


@dataclass(frozen=True)
class AuditLine:
    """The intervention of one signal."""

    pid: int
    started: datetime
    action: str
    identity: str
    who: Who
    reason: str

    def record(self, *, wait_ms: int) -> bool:
        """Write it; False if another session locks the audit for so long. Raises AlreadySignalled."""
        try:
            with limited(connection, STATEMENT_MS, wait_ms):
                self._refuse_twice()
                what = f"{self.action} {self.identity}"
                audit.record(connection, self.who, what, [Change(audit.backend(self.pid))], self.reason)
        except DatabaseError as error:
            if sqlstate(error) not in TOO_SLOW:
                raise
            return False
        return True

    def log_instead(self) -> str:
        """Write it to the log; returns the message for the operator."""
        logger.error(
            "not in the audit: actor=%s source=%s action=%s target=backend:%d session=%s started=%s reason=%s",
            self.who.actor, self.who.source, self.action, self.pid, self.identity, self.started.isoformat(),
            redact(self.reason),
        )  # fmt: skip
        locker = locked_tables(connection, AGAINST_WRITERS).get(AUDIT)
        text = _(
            "Backend %(pid)d was signalled, but the audit has no line of it: `%(table)s` is locked by %(locker)s. "
            "The log of this process has the line."
        )
        return text % {"pid": self.pid, "table": AUDIT, "locker": locker or _("another session")}

    def _refuse_twice(self) -> None:
        target = audit.backend(self.pid)
        params = {"target": target, "action": self.action, "started": self.started, "seconds": AGAIN_SECONDS}
        if lately := fetch(connection, LATELY, params):
            text = _("Backend %(pid)d was signalled a moment ago by %(actor)s; it was not signalled again.")
            raise AlreadySignalled(text % {"pid": self.pid, "actor": lately[0]["actor"]})


def shell(pid: int, started: datetime, action: str, *more: str) -> str:
    """The command that signals this session, for a shell."""
    return command("signal_backend", str(pid), "--started", started.isoformat(), f"--{action}", *more)


def root_of_chain(pid: int) -> tuple[int, datetime]:
    """The pid and start of the session at the root of this session's chain. Raises NotSignalled if there is none."""
    with limited(connection, PERSON_STATEMENT_MS):
        seen = activity.read()
    root = next((root for root in seen.roots if tree.find_node((root,), pid)), None)
    if root is None:
        raise NotSignalled(f"Session {pid} waits for no other and blocks none, so it has no root to end.")
    if root.session.is_outsider:
        raise NotSignalled(f"The root is no session of this server and cannot be signalled: {root.session.label}.")
    if root.session.backend_start is None:
        raise NotSignalled(f"The start of backend {root.session.pid} is hidden: GRANT pg_read_all_stats to this role.")
    return root.session.pid, root.session.backend_start


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
            "you saw. GRANT pg_read_all_stats TO %(my_role)s, and try again."
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


@dataclass(frozen=True)
class Consequences:
    """The effects of a signal to one session.

    `at_once`: sessions that wait for nobody else; `later`: those that also wait for others. `session` is None if it has
    ended; `problem` says why it would not be signalled; `unavailable`: tables that could not be asked for names.
    """

    session: Session | None
    at_once: tuple[Session, ...] = ()
    later: tuple[Session, ...] = ()
    work: Behind = field(default_factory=Behind)
    problem: str = ""
    unavailable: tuple[Unavailable, ...] = ()


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
        unavailable=page.unavailable,
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
