"""Finished attempts and their latency over an hour, a day or a week, from the rollup."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

from django.db import connection
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext_lazy as _

from tasks import latency
from tasks.database import fetch
from tasks.rollup.slots import SLOT, SUMS

# Half-hour slots as far as they have been summed, single minutes after that.
PLACES = "SELECT date_bin(%(step)s::interval, at, 'epoch') AS at,"
PARTS = """
FROM (
    SELECT at, completed, failed, run_buckets, wait_buckets FROM tasks_throughputslot
    WHERE at >= %(since)s::timestamptz AND at < %(minutes_since)s::timestamptz
    UNION ALL
    SELECT minute, completed, failed, run_buckets, wait_buckets FROM tasks_throughput
    WHERE minute >= %(minutes_since)s::timestamptz
) AS part
GROUP BY 1 ORDER BY 1
"""

SERIES = PLACES + SUMS + PARTS

LAST = """
SELECT date_bin(%(step)s::interval, clock_timestamp(), 'epoch') AS at,
    (SELECT max(at) + %(slot)s::interval FROM tasks_throughputslot) AS added_up_until
"""


@dataclass(frozen=True)
class Span:
    """A stretch of time that a chart shows, as `slots` slots of `step`. Answers are cached for `seconds`."""

    key: str
    label: Promise
    step: timedelta
    slots: int
    seconds: float

    @property
    def clock(self) -> str:
        """The `strftime` format of its times."""
        return "%H:%M" if self.step * self.slots <= timedelta(hours=1) else "%m-%d %H:%M"


SPANS = {
    span.key: span
    for span in (
        Span("1h", _("Last hour"), timedelta(minutes=1), 60, 5),
        Span("24h", _("Last 24 hours"), timedelta(minutes=30), 48, 60),
        Span("7d", _("Last 7 days"), timedelta(hours=2), 84, 300),
    )
}


@dataclass(frozen=True)
class Slot:
    """Attempts that finished in one slot. Percentiles are seconds, None if nothing was completed."""

    at: datetime
    completed: int = 0
    failed: int = 0
    run_buckets: list[int] = field(default_factory=list)
    wait_buckets: list[int] = field(default_factory=list)

    @property
    def shown(self) -> Hashable:
        """A cache key of everything that the pages show of this slot. Only recent slots change."""
        return self.at, self.completed, self.failed, tuple(self.run_buckets), tuple(self.wait_buckets)

    @cached_property
    def run_median(self) -> float | None:
        return latency.percentile(self.run_buckets, 0.5)

    @cached_property
    def run_slow(self) -> float | None:
        """p95 run time, in seconds."""
        return latency.percentile(self.run_buckets, 0.95)

    @cached_property
    def wait_median(self) -> float | None:
        return latency.percentile(self.wait_buckets, 0.5)

    @cached_property
    def wait_slow(self) -> float | None:
        """p95 wait from due to started, in seconds."""
        return latency.percentile(self.wait_buckets, 0.95)


def series(span: Span) -> list[Slot]:
    """All slots of the span, including empty ones; the current slot is last."""
    last = fetch(connection, LAST, {"step": span.step, "slot": SLOT})[0]
    first = last["at"] - span.step * (span.slots - 1)
    # Steps shorter than half an hour need single minutes.
    added_up_until = last["added_up_until"] if span.step >= SLOT else None
    since = {"since": first, "minutes_since": max(first, added_up_until or first)}
    found = {row["at"]: slot(row) for row in fetch(connection, SERIES, {"step": span.step, **since})}
    times = [first + span.step * number for number in range(span.slots)]
    return [found.get(at) or Slot(at) for at in times]


def slot(row: dict[str, Any]) -> Slot:
    """Make a Slot of one row; a bucket that no row fills is NULL."""
    buckets = {name: [count or 0 for count in row[name]] for name in ("run_buckets", "wait_buckets")}
    return Slot(row["at"], row["completed"], row["failed"], **buckets)


@cache
def asking(key: str) -> Callable[[], list[Slot]]:
    """The query of one span. It is one cached object per span, because answers are cached by their callable."""
    return partial(series, SPANS[key])
