"""Filters for the page of scheduled commands and named locks."""

import shlex
from collections.abc import Sequence
from datetime import timedelta

from django import template
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.numbers import decimal
from tasks.locking.named.holder import Life
from tasks.models import CommandRun
from tasks.support import durations

register = template.Library()

LIVES: dict[str, tuple[Promise, Promise]] = {
    Life.ALIVE: (gettext_lazy("Alive"), gettext_lazy("Its session is there: the holder lives and renews its lease.")),
    Life.MISSING: (
        gettext_lazy("Holder gone"),
        gettext_lazy("Its session has ended: the next one that asks gets the lock, after a second look."),
    ),
    Life.EXPIRED: (
        gettext_lazy("Lease over"),
        gettext_lazy("Its lease is over: the next one that asks gets the lock at once."),
    ),
    Life.RESTARTED: (
        gettext_lazy("Database restarted"),
        gettext_lazy("The database restarted, so that its absence proves nothing: it has its lease to come back."),
    ),
    Life.UNSEEN: (
        gettext_lazy("Held"),
        gettext_lazy("Only its lease tells whether it lives: it holds the lock from another language, or in Redis."),
    ),
}


@register.filter
def life(value: str) -> str:
    """The state of a holder, in a word or two."""
    return str(LIVES[value][0]) if value in LIVES else ""


@register.filter
def life_means(value: str) -> str:
    """The state of a holder, as a sentence."""
    return str(LIVES[value][1]) if value in LIVES else ""


@register.filter
def outcome(value: str) -> str:
    return str(CommandRun.Outcome(value).label)


@register.filter
def rhythm(every: timedelta) -> str:
    """An interval as `every` takes it: `5m`."""
    return durations.describe(every)


@register.filter
def lasted(seconds: float) -> str:
    """Format the duration of a run.

    >>> lasted(0.5), lasted(59.6), lasted(7384)
    ('0.5 s', '60 s', '2 h 03 min')
    """
    if seconds < 10:
        return _("%(number)s s") % {"number": decimal(seconds, 1)}
    if seconds < 120:
        return _("%(number)d s") % {"number": round(seconds)}
    minutes = int(seconds // 60)
    if minutes < 120:
        return _("%(minutes)d min") % {"minutes": minutes}
    return _("%(hours)d h %(minutes)02d min") % {"hours": minutes // 60, "minutes": minutes % 60}


@register.filter
def shell_line(argv: Sequence[str]) -> str:
    """A command line, quoted for a shell."""
    return argv[0] if len(argv) == 1 else shlex.join(argv)
