"""What finished and how long it took, over an hour, a day or a week, from the rollup."""

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

# Half hours where there are any, minutes from the end of the last one on.
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
    """A stretch of time that a chart shows: so many slots of `step`. `seconds`: how long one answer is good enough."""

    key: str
    label: Promise
    step: timedelta
    slots: int
    seconds: float

    @property
    def clock(self) -> str:
        """How its times are written, for `strftime`."""
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
    """What finished in one slot. Percentiles are seconds, None when nothing was completed."""

    at: datetime
    completed: int = 0
    failed: int = 0
    run_buckets: list[int] = field(default_factory=list)
    wait_buckets: list[int] = field(default_factory=list)

    @property
    def shown(self) -> Hashable:
        """All that the pages write of it, which changes in the latest ones alone."""
        return self.at, self.completed, self.failed, tuple(self.run_buckets), tuple(self.wait_buckets)

    @cached_property
    def run_median(self) -> float | None:
        return latency.percentile(self.run_buckets, 0.5)

    @cached_property
    def run_slow(self) -> float | None:
        """The time in which 95 of 100 ran."""
        return latency.percentile(self.run_buckets, 0.95)

    @cached_property
    def wait_median(self) -> float | None:
        return latency.percentile(self.wait_buckets, 0.5)

    @cached_property
    def wait_slow(self) -> float | None:
        """The time within which 95 of 100 began, counted from when they were due."""
        return latency.percentile(self.wait_buckets, 0.95)


def series(span: Span) -> list[Slot]:
    """Every slot of the span, also the empty ones, the present one last."""
    last = fetch(connection, LAST, {"step": span.step, "slot": SLOT})[0]
    first = last["at"] - span.step * (span.slots - 1)
    # Steps shorter than half an hour are made of minutes alone.
    added_up_until = last["added_up_until"] if span.step >= SLOT else None
    since = {"since": first, "minutes_since": max(first, added_up_until or first)}
    found = {row["at"]: slot(row) for row in fetch(connection, SERIES, {"step": span.step, **since})}
    times = [first + span.step * number for number in range(span.slots)]
    return [found.get(at) or Slot(at) for at in times]


def slot(row: dict[str, Any]) -> Slot:
    """One row of the statement; a bucket that no row has is None there."""
    buckets = {name: [count or 0 for count in row[name]] for name in ("run_buckets", "wait_buckets")}
    return Slot(row["at"], row["completed"], row["failed"], **buckets)


@cache
def asking(key: str) -> Callable[[], list[Slot]]:
    """The question for this span, one object for each, as a look keeps answers by their question."""
    return partial(series, SPANS[key])
