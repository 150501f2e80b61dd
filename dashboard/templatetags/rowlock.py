"""The template library of all pages: times and ages, numbers, links, and words for states."""

import shlex
from collections.abc import Hashable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import SimpleNamespace
from urllib.parse import quote

from django import template
from django.template import Context, Template
from django.urls import get_script_prefix
from django.utils.functional import Promise
from django.utils.html import escape, format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _
from django_htmx.jinja import htmx_script

from dashboard import links
from dashboard.links import page
from dashboard.numbers import decimal, milliseconds, rate
from tasks import panels
from tasks.diagnosis import Link, finding
from tasks.diagnosis.stats import Rate
from tasks.locking.named.holder import Life
from tasks.locking.rowlocks import RowLock
from tasks.models import Attempt
from tasks.support import addresses, durations, reading
from tasks.support.addresses import address
from tasks.support.durations import spoken

register = template.Library()
register.filter(milliseconds)
register.filter(rate)
register.simple_tag(htmx_script)  # from here, because the app of django-htmx need not be installed

MOST_TEXTS = 4000  # rendered rows that a process keeps, a kilobyte or two each
MESSAGE = 300  # characters of an exception's message
TONES = ("#0b4f71", "#8f1212", "#17592b", "#5d4400", "#222222", "#6b3fa0")  # for charts on paper
PAGES = {"lock": "admin:ops_schedule", "command": "admin:ops_schedule", "attention": "admin:index"}
ROWS = {"task": "admin:tasks_task_change", "lab run": "admin:ops_lab_run"}
LIVES: dict[str, tuple[Promise, Promise]] = {
    Life.ALIVE: (gettext_lazy("Alive"), gettext_lazy("Its session is there: the holder lives and renews its lease.")),
    Life.MISSING: (
        gettext_lazy("Holder gone"),
        gettext_lazy("Its session has ended: the next process that asks gets the lock, after a second check."),
    ),
    Life.EXPIRED: (
        gettext_lazy("Lease over"),
        gettext_lazy("Its lease is over: the next process that asks gets the lock."),
    ),
    Life.RESTARTED: (
        gettext_lazy("Database restarted"),
        gettext_lazy("The database restarted, so a missing session proves nothing: it has one lease to come back."),
    ),
    Life.UNSEEN: (
        gettext_lazy("Held"),
        gettext_lazy("Only its lease tells whether it lives: it holds the lock from another language, or in Redis."),
    ),
}


@register.simple_tag(takes_context=True)
def each(context: Context, template_name: str, rows: Iterable[Hashable], **others: Hashable) -> SafeString:
    """Each row by the template, which sees `row` and `others` alone, so equal rows are rendered once.

    A row is a frozen view model: a list that refreshes itself shows mostly the rows that it showed before.
    """
    assert context.template is not None
    compiled = context.template.engine.get_template(template_name)
    seen = (compiled, get_language(), get_script_prefix(), addresses.site(), tuple(others.items()))
    return SafeString("".join(text_of(row, *seen) for row in rows))  # nosec B703


class RowContext(Context):
    """A context whose addresses lead to one admin site, as those of a request do."""

    def __init__(self, values: dict[str, Hashable], site: str) -> None:
        super().__init__(values)
        self.request = SimpleNamespace(current_app=site)


@lru_cache(MOST_TEXTS)
def text_of(
    row: Hashable,
    compiled: Template,
    _language: str | None,
    _prefix: str,
    site: str,
    others: tuple[tuple[str, Hashable], ...],
) -> str:
    """The row's text. A change of the language, of the address prefix or of the site takes another text."""
    return compiled.render(RowContext({"row": row, **dict(others)}, site))


@register.simple_block_tag
def menu(content: str, label: str) -> SafeString:
    """The menu behind ⋯, named `label` for those who cannot see it; its content has `role="menuitem"` on each item."""
    return format_html(
        '<details class="menu"><summary aria-label="{0}" title="{0}" aria-haspopup="menu">⋯</summary>'
        '<div role="menu" aria-label="{0}">{1}</div></details>',
        label,
        content,
    )


@register.simple_tag
def spark(values: Sequence[float], label: str) -> SafeString:
    """A bar for each value, oldest first, the highest one as high as the line; `label` says it in words."""
    top = max(values, default=0) or 1
    heights = [(4 * place + 2, 20 - max(1, 20 * value / top)) for place, value in enumerate(values) if value]
    return format_html(
        '<svg class="spark" role="img" aria-label="{0}" viewBox="0 0 {1} 20" preserveAspectRatio="none">'
        '<title>{0}</title><path d="{2}"/></svg>',
        label,
        4 * len(values) or 4,
        "".join(f"M{x} 20V{y:.1f}" for x, y in heights),
    )


@register.simple_tag
def counted(number: str, url: str) -> SafeString:
    """A number that leads to what it counts; zero leads nowhere."""
    return format_html('<span class="quiet">0</span>' if number == "0" else '<a href="{1}">{0}</a>', number, url)


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
    phrase = _("just now") if 0 <= seconds < 1 else _("%(age)s ago") if seconds >= 1 else _("in %(age)s")
    text = phrase % {"age": spoken(abs(seconds))}
    utc = at.astimezone(UTC)
    stamp = f'<time datetime="{utc.isoformat()}" title="{written(utc)}" data-age>'
    return SafeString(f"{stamp}{escape(text)}</time>")  # nosec B703


@register.filter
def written(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


@register.filter
def ago(seconds: float | None) -> str:
    return "" if seconds is None else spoken(seconds)


@register.filter
def between(start: datetime | None, end: datetime | None) -> str:
    """The time between two moments, in words."""
    return spoken((end - start).total_seconds()) if start and end else ""


@register.filter
def rhythm(every: timedelta) -> str:
    """An interval as `every` takes it: `5m`."""
    return durations.describe(every)


@register.filter
def per_minute(rate: Rate) -> str:
    """The rate, with one digit after the point below ten."""
    return decimal(rate.per_minute, 0 if rate.per_minute >= 10 or not rate.per_minute else 1)


@register.filter
def modulo(number: int, divisor: int) -> int:
    """The remainder; it picks the style of the next curve."""
    return number % divisor


@register.filter
def tone(number: int) -> str:
    """The colour of a curve where there is no style sheet."""
    return TONES[number % len(TONES)]


@register.filter
def life(value: str) -> str:
    """The state of a holder, in a word or two."""
    return str(LIVES[value][0]) if value in LIVES else ""


@register.filter
def life_means(value: str) -> str:
    """The state of a holder, as a sentence."""
    return str(LIVES[value][1]) if value in LIVES else ""


@register.filter
def one_line(text: str) -> str:
    """A stored name on one line, with line breaks and escapes made visible."""
    return reading.one_line(text)


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


register.filter("schedule_href", links.schedule)


@register.filter
def href(link: Link) -> str:
    """The address of a verdict's link."""
    if link.kind == "task":
        return address("admin:tasks_task_change", link.target)
    if link.kind == "worker":
        return links.worker(link.target)
    if link.kind == "limit":
        return links.limit(link.target)
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
        case "limit":
            phrase = _("limit %s")
        case "session":
            phrase = _("session %s")
    return phrase % link.target


@register.simple_tag
def shell(name: str, *words: str | int) -> str:
    """The line that runs this command of ours in a shell."""
    return finding.command(name, *map(str, words))


@register.filter
def shell_line(argv: Sequence[str]) -> str:
    """A command line, quoted for a shell."""
    return argv[0] if len(argv) == 1 else shlex.join(argv)


@register.filter
def target_href(target: str) -> str:
    """Link to the page of an intervention's target; empty if there is none."""
    kind, _colon, name = target.partition(":")
    panels.load()
    rows = ROWS | {watched.kind: watched.url_name for watched in panels.WATCHED}
    if kind in rows and name.isascii() and name.isdecimal():
        return page(rows[kind], int(name))
    if kind == "limit":
        return links.limit(name)
    if kind == "schedule":
        return links.schedule(name)
    if kind in ("queue", "worker"):
        return f"{address('admin:tasks_task_changelist')}?{urlencode({kind: name})}"
    return page(PAGES[kind]) if kind in PAGES else ""
