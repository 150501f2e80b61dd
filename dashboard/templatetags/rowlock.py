"""Filters and tags for times, ages and links."""

from datetime import UTC, datetime
from urllib.parse import quote

from django import template
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from tasks.diagnosis import Link, finding
from tasks.locking.rowlocks import RowLock
from tasks.models import Attempt
from tasks.support import reading
from tasks.support.addresses import address
from tasks.support.durations import spoken

register = template.Library()
MESSAGE = 300  # characters of an exception's message


@register.simple_tag
def moment(at: datetime | None) -> str | SafeString:
    """A time as `2026-11-20 03:12:05 UTC`; a script adds the reader's own time zone."""
    if at is None:
        return ""
    return format_html('<time datetime="{}">{}</time>', at.astimezone(UTC).isoformat(), written(at))


@register.simple_tag
def age(at: datetime | None, now: datetime) -> str | SafeString:
    """The time from `at` to `now` ("5 s ago", "in 5 s"), with the exact time in the title."""
    if at is None:
        return ""
    seconds = (now - at).total_seconds()
    text = (_("%(age)s ago") if seconds >= 0 else _("in %(age)s")) % {"age": spoken(abs(seconds))}
    utc = at.astimezone(UTC)
    stamp = f'<time datetime="{utc.isoformat()}" title="{written(utc)}" data-age>'
    return SafeString(f"{stamp}{escape(text)}</time>")  # nosec B703


def written(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


@register.filter
def one_line(text: str) -> str:
    """A stored name on one line, with line breaks and escapes made visible."""
    return reading.one_line(text)


@register.filter
def ago(seconds: float | None) -> str:
    return "" if seconds is None else spoken(seconds)


@register.filter
def told_failure(attempt: Attempt) -> str:
    """The last line of the exception in the traceback; without one, the exception's class."""
    name = attempt.exception_class.rpartition(".")[2]
    said = [line for line in attempt.traceback.splitlines() if line.partition(":")[0].rpartition(".")[2] == name]
    return Truncator(said[-1]).chars(MESSAGE) if name and said else attempt.exception_class or "?"


@register.filter
def told_lock(lock: RowLock) -> str:
    """The holder of a row lock, in words."""
    return finding.describe_lock(lock)


@register.filter
def href(link: Link) -> str:
    """The address of a verdict's link."""
    if link.kind == "task":
        return address("admin:tasks_task_change", link.target)
    if link.kind == "worker":
        return address("admin:tasks_worker_changelist") + f"?q={quote(link.target, safe='')}"
    if link.kind == "session":
        return address("admin:ops_locks") + f"#node-{link.target}"
    return address("admin:tasks_task_changelist") + f"?{link.kind}={quote(link.target, safe='')}"


@register.filter
def told(link: Link) -> str:
    """The text of a verdict's link."""
    match link.kind:
        case "task":
            phrase = "#%s"
        case "worker":
            phrase = _("worker %s")
        case "queue":
            phrase = _("queue %s")
        case "key":
            phrase = _("key %s")
        case "session":
            phrase = _("session %s")
    return phrase % link.target
