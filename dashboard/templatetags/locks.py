"""How the lock pages write waits and what stands behind a session."""

from collections.abc import Mapping, Sequence

from django import template
from django.template.defaultfilters import truncatechars
from django.utils.translation import gettext as _

from dashboard.locks import words as lock_words
from dashboard.locks.behind import Behind, page_of
from dashboard.locks.identity import identify
from dashboard.locks.look import LockLook
from dashboard.locks.sessions import Session
from tasks.verdicts.words import command

QUERY_SHOWN = 160

register = template.Library()
register.filter("told_wait", lock_words.told_wait)
register.filter("identity", identify)
register.filter("page_of_identity", page_of)


@register.filter(name="page_of")
def page_of_session(session: Session) -> str:
    """The page about who this session is, or an empty text."""
    return page_of(session.identity)


@register.filter
def page_of_name(application_name: str) -> str:
    """The same for a session that is long over."""
    return page_of(identify(application_name))


@register.filter
def of_session(behind: Mapping[int, Behind], session: Session) -> Behind | None:
    """What stands behind this session, if anything is known."""
    return behind.get(session.pid)


@register.filter
def is_bystander(session: Session, look: LockLook) -> bool:
    """Whether it stands in no line of the tree."""
    return session.pid in look.bystanders


@register.filter
def anchor(session: Session) -> str:
    """Where the lock page shows this session."""
    return f"node-{session.key}"


@register.filter
def of_session_pid(by_pid: Mapping[int, Session], pid: int) -> str:
    """Who this is that is no session here."""
    return str(by_pid[pid].identity) if pid in by_pid else str(pid)


@register.filter
def few(pids: Sequence[int]) -> str:
    """The first three of the pids: the fiftieth of a queue waits for all before it, and names the others by number."""
    return ", ".join(map(str, pids[:3])) + beyond(pids, 3)


@register.filter
def beyond(pids: Sequence[int], shown: int) -> str:
    """How many there are beside those that are shown; an empty text when that is all."""
    return " " + _("and %(number)s more") % {"number": len(pids) - shown} if len(pids) > shown else ""


@register.filter
def beginning(query: str) -> str:
    """The first characters of a statement; Django's own filter goes through every one of a short text too."""
    return query if len(query) <= QUERY_SHOWN else truncatechars(query, QUERY_SHOWN)


@register.filter
def terminate_command(session: Session) -> str:
    """What an operator types to end this session."""
    started = session.backend_start.isoformat() if session.backend_start else "…"
    return command("signal_backend", str(session.pid), "--started", started, "--terminate")
