"""How pages write times, ages and links."""

from datetime import UTC, datetime
from urllib.parse import quote

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from tasks import reading
from tasks.addresses import address
from tasks.ages import spoken
from tasks.locking.rowlocks import RowLock
from tasks.models import Attempt
from tasks.verdicts import Link, words

register = template.Library()
MESSAGE = 300  # characters of an exception's message


@register.simple_tag
def moment(at: datetime | None) -> str | SafeString:
    """A time as `2026-11-20 03:12:05 UTC`; a script adds the reader's own zone."""
    if at is None:
        return ""
    return format_html('<time datetime="{}">{}</time>', at.astimezone(UTC).isoformat(), written(at))


@register.simple_tag
def age(at: datetime | None, now: datetime) -> str | SafeString:
    """How long ago a time was, or in how long it will be; the time itself stands in its title."""
    if at is None:
        return ""
    seconds = (now - at).total_seconds()
    text = (_("%(age)s ago") if seconds >= 0 else _("in %(age)s")) % {"age": spoken(abs(seconds))}
    return format_html(
        '<time datetime="{}" title="{}" data-age>{}</time>', at.astimezone(UTC).isoformat(), written(at), text
    )


def written(at: datetime) -> str:
    """The time in UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


@register.filter
def one_line(text: str) -> str:
    """A name as it was stored, its line breaks and escapes shown as such."""
    return reading.one_line(text)


@register.filter
def ago(seconds: float | None) -> str:
    """An age in seconds, in words."""
    return "" if seconds is None else spoken(seconds)


@register.filter
def told_failure(attempt: Attempt) -> str:
    """The exception with its message, as its traceback ends; without one, its class."""
    name = attempt.exception_class.rpartition(".")[2]
    said = [line for line in attempt.traceback.splitlines() if line.partition(":")[0].rpartition(".")[2] == name]
    return Truncator(said[-1]).chars(MESSAGE) if name and said else attempt.exception_class or "?"


@register.filter
def told_lock(lock: RowLock) -> str:
    """Who holds a row, in words."""
    return words.told_lock(lock)


@register.filter
def href(link: Link) -> str:
    """The address of what a verdict points to."""
    if link.kind == "task":
        return address("admin:tasks_task_change", link.target)
    if link.kind == "worker":
        return address("admin:tasks_worker_changelist") + f"?q={quote(link.target, safe='')}"
    if link.kind == "session":
        return address("admin:ops_locks") + f"#node-{link.target}"
    return address("admin:tasks_task_changelist") + f"?{link.kind}={quote(link.target, safe='')}"


@register.filter
def told(link: Link) -> str:
    """The words of that link."""
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
