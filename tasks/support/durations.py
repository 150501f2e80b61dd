"""The database's clock, and durations as people read and write them.

Only the database's clock counts: other machines' clocks may differ (fault F12).
"""

import re
from datetime import timedelta
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

AGE_UNITS = (
    (86_400, lambda number: ngettext("%(number)d day", "%(number)d days", number)),
    (3_600, lambda number: ngettext("%(number)d hour", "%(number)d hours", number)),
    (60, lambda number: ngettext("%(number)d minute", "%(number)d minutes", number)),
    (1, lambda number: ngettext("%(number)d second", "%(number)d seconds", number)),
)
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST = timedelta(days=36_500)  # within the range of PostgreSQL's calendar
WRITTEN = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)


class StatementTimestamp(models.Func):
    """PostgreSQL's clock at the start of this statement; `now()` does not advance inside a transaction."""

    function = "statement_timestamp"
    output_field: ClassVar[models.Field] = models.DateTimeField()


def spoken(seconds: float) -> str:
    """The age in its largest unit, rounded down; at least two of a unit, so that rounding stays small.

    >>> spoken(0.2), spoken(1), spoken(119), spoken(120), spoken(7200)
    ('less than a second', '1 second', '119 seconds', '2 minutes', '2 hours')
    """
    for size, text in AGE_UNITS:
        if seconds >= 2 * size or (size == 1 and seconds >= 1):
            number = int(seconds // size)
            return text(number) % {"number": number}
    return _("less than a second")


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
