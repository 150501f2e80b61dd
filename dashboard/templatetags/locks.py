"""Filters for waits and sessions on the lock pages."""

from collections.abc import Mapping, Sequence

from django import template
from django.template.defaultfilters import truncatechars
from django.utils.translation import gettext as _

from dashboard.locks.attribution import Behind, LockPage, page_of
from dashboard.locks.identity import identify
from dashboard.locks.tree import Session, wait_in_words
from tasks.diagnosis.finding import command

QUERY_SHOWN = 160

register = template.Library()
register.filter("told_wait", wait_in_words)
register.filter("identity", identify)
register.filter("page_of_identity", page_of)


@register.filter(name="page_of")
def page_of_session(session: Session) -> str:
    """Link to the page about the owner of this session, or an empty text."""
    return page_of(session.identity)


@register.filter
def page_of_name(application_name: str) -> str:
    """Link to the page about the owner of a session that has ended, or an empty text."""
    return page_of(identify(application_name))


@register.filter
def of_session(behind: Mapping[int, Behind], session: Session) -> Behind | None:
    """The work behind this session, or None if unknown."""
    return behind.get(session.pid)


@register.filter
def is_bystander(session: Session, look: LockPage) -> bool:
    """True if the session is in no line of the lock tree."""
    return session.pid in look.bystanders


@register.filter
def anchor(session: Session) -> str:
    """The id of the session's element on the lock page."""
    return f"node-{session.key}"


@register.filter
def of_session_pid(by_pid: Mapping[int, Session], pid: int) -> str:
    """The identity of a session that is not on this page, else its pid."""
    return str(by_pid[pid].identity) if pid in by_pid else str(pid)


@register.filter
def few(pids: Sequence[int]) -> str:
    """The first three pids, and the number of the others: in a long queue each session waits for all before it."""
    return ", ".join(map(str, pids[:3])) + beyond(pids, 3)


@register.filter
def beyond(pids: Sequence[int], shown: int) -> str:
    """The text "and N more", or an empty one if all are shown."""
    return " " + _("and %(number)s more") % {"number": len(pids) - shown} if len(pids) > shown else ""


@register.filter
def beginning(query: str) -> str:
    """The beginning of a statement. Django's filter alone would walk every character of a short text too."""
    return query if len(query) <= QUERY_SHOWN else truncatechars(query, QUERY_SHOWN)


@register.filter
def terminate_command(session: Session) -> str:
    """The command that terminates this session."""
    started = session.backend_start.isoformat() if session.backend_start else "…"
    return command("signal_backend", str(session.pid), "--started", started, "--terminate")
