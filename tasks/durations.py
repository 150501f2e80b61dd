"""Durations as operators write them: 90s, 15m, 12h, 7d, 2w."""

import re
from datetime import timedelta

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST = timedelta(days=36_500)  # within the range of PostgreSQL's calendar
WRITTEN = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)


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
