"""The database's clock, and durations as people read and write them.

Only the database's clock counts: other machines' clocks may differ (fault F12).
"""

import re
from datetime import timedelta
from typing import ClassVar

from django.db import models
from django.utils.formats import number_format
from django.utils.translation import gettext as _

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST = timedelta(days=36_500)  # within the range of PostgreSQL's calendar
RATE = re.compile(r"([1-9]\d{0,5})/([smhd])", re.ASCII)
WRITTEN = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)


class StatementTimestamp(models.Func):
    """PostgreSQL's clock at the start of this statement; `now()` does not advance inside a transaction."""

    function = "statement_timestamp"
    output_field: ClassVar[models.Field] = models.DateTimeField()


def spoken(seconds: float) -> str:
    """The duration in the unit that fits, rounded down; large enough a number that rounding stays small.

    >>> spoken(0.0012), spoken(0.25), spoken(119), spoken(120), spoken(11_100), spoken(172_800)
    ('1.2 ms', '250 ms', '119 s', '2 min', '3 h 5 min', '2 d')
    """
    if seconds < 1:
        thousandths = 1000 * seconds
        return _("%(number)s ms") % {
            "number": number_format(round(thousandths, 1) if thousandths < 10 else int(thousandths))
        }
    if seconds < 120:
        return _("%(number)d s") % {"number": seconds}
    if seconds < 7200:
        return _("%(minutes)d min") % {"minutes": seconds // 60}
    if seconds < 172_800:
        hours, minutes = divmod(int(seconds // 60), 60)
        phrase = _("%(hours)d h %(minutes)d min") if minutes else _("%(hours)d h")
        return phrase % {"hours": hours, "minutes": minutes}
    return _("%(number)d d") % {"number": seconds // 86_400}


def parse(text: str) -> timedelta:
    """Parse a duration. Raises ValueError with examples.

    >>> parse("15m")
    datetime.timedelta(seconds=900)
    """
    match = WRITTEN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a number and its unit, like 90s, 15m, 12h, 7d or 2w.")
    if int(match[1]) > LONGEST / timedelta(**{UNITS[match[2]]: 1}):
        raise ValueError(f"{text!r} is more than a hundred years: write a shorter duration, like 52w.")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def rate_of(text: object) -> tuple[int, int] | None:
    """The starts and the seconds of a rate; None if the text is none.

    >>> rate_of("100/m"), rate_of("5/d"), rate_of("0/s"), rate_of("1.5/s")
    ((100, 60), (5, 86400), None, None)
    """
    found = RATE.fullmatch(text) if isinstance(text, str) else None
    return (int(found[1]), int(timedelta(**{UNITS[found[2]]: 1}).total_seconds())) if found else None


def rate_text(rate: int | None, period_seconds: int | None) -> str:
    """A rate as `rate_of` reads it, if its period is one of those.

    >>> rate_text(100, 60), rate_text(7, 90), rate_text(None, None)
    ('100/m', '7 in 90 s', 'none')
    """
    if rate is None or period_seconds is None:
        return "none"
    unit = next((unit for unit in "smhd" if timedelta(**{UNITS[unit]: 1}).total_seconds() == period_seconds), None)
    return f"{rate}/{unit}" if unit else f"{rate} in {period_seconds} s"


def describe(duration: timedelta) -> str:
    """The shortest text of whole seconds that `parse` reads back.

    >>> describe(timedelta(days=7)), describe(timedelta(seconds=90)), describe(timedelta(0))
    ('1w', '90s', '0s')
    """
    seconds = int(duration.total_seconds())
    for unit in reversed(UNITS):
        size = int(timedelta(**{UNITS[unit]: 1}).total_seconds())
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return "0s"
