"""A machine whose clock is wrong: put on a process's path as `sitecustomize`, this shifts every clock of the day.

SKEW_SECONDS says by how much. Intervals are left right, as they are on such a machine.
"""

import datetime
import os
import time

SECONDS = float(os.environ.get("SKEW_SECONDS", "0"))
right_time, right_time_ns, Right = time.time, time.time_ns, datetime.datetime


class Skewed(Right):
    """The class of all moments that this process makes."""

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
