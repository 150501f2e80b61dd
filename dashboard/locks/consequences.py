"""Foresee a signal to a session: who is unblocked, what is rolled back, which task may run twice."""

from dataclasses import dataclass, field
from datetime import datetime

from django.utils.translation import gettext as _

from dashboard.locks import backends, tree
from dashboard.locks import look as lock_look
from dashboard.locks.behind import Behind, RunningTask
from dashboard.locks.sessions import Session


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
    look = lock_look.fresh()
    session = look.seen.by_pid.get(pid)
    if session is None or session.backend_start != started:
        return Consequences(None, problem=backends.problem_of(pid, started))
    node = tree.find(look.seen.roots, pid)
    at_once = [below.session for below in node.blocked if set(below.session.blocked_by) <= {pid}] if node else []
    everybody = [look.seen.by_pid[victim] for victim in node.victim_pids()] if node else []
    return Consequences(
        session,
        tuple(at_once),
        tuple(victim for victim in everybody if victim not in at_once),
        look.behind.get(pid, Behind()),
        backends.problem_of(pid, started),
    )


def told_undoing(session: Session, action: str) -> str:
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


def told_task(task: RunningTask) -> str:
    """The consequence for the task whose worker's session is signalled."""
    told = {"number": task.attempt, "of": task.max_attempts}
    if not task.has_attempts_left:
        return _(
            "Attempt %(number)d of %(of)d, its last: if the statement was its own, the task ends as FAILED, and a "
            "person decides whether it runs again."
        ) % told  # fmt: skip
    return _(
        "Attempt %(number)d of %(of)d: if the statement was its own, the attempt fails and the task runs again after "
        "its backoff. What it did in the database is undone before; what it did outside (an e-mail, a call) may happen "
        "twice."
    ) % told  # fmt: skip
