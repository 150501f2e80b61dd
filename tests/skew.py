"""A wrong clock: as `sitecustomize` on a process's path, this shifts its wall clocks by SKEW_SECONDS.

Intervals stay right, as on a real machine with a wrong clock.
"""

import datetime
import os
import time

SECONDS = float(os.environ.get("SKEW_SECONDS", "0"))
right_time, right_time_ns, Right = time.time, time.time_ns, datetime.datetime


class Skewed(Right):
    """The class of all datetimes in this process."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def today(cls):
        return cls.now()

    @classmethod
    def utcnow(cls):
        return cls.now(datetime.UTC).replace(tzinfo=None)


if SECONDS:
    time.time = lambda: right_time() + SECONDS
    time.time_ns = lambda: right_time_ns() + int(SECONDS * 1e9)
    datetime.datetime = Skewed  # type: ignore[misc]
