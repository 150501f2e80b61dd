"""What finished and how long it took, over an hour, a day or a week, from the per-minute rollup."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

from django.conf import settings
from django.db import connection
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from tasks import latency
from tasks.database import fetch
from tasks.rollup import SETTLE_MINUTES

# Sums of array elements: unnesting 32 counts of each row took eight times as long.
SERIES = """
SELECT date_bin(%(step)s::interval, minute, 'epoch') AS at, sum(completed)::bigint AS completed,
    sum(failed)::bigint AS failed,
    ARRAY[sum(run_buckets[1]), sum(run_buckets[2]), sum(run_buckets[3]), sum(run_buckets[4]), sum(run_buckets[5]),
        sum(run_buckets[6]), sum(run_buckets[7]), sum(run_buckets[8]), sum(run_buckets[9]), sum(run_buckets[10]),
        sum(run_buckets[11]), sum(run_buckets[12]), sum(run_buckets[13]), sum(run_buckets[14]),
        sum(run_buckets[15]), sum(run_buckets[16])]::bigint[] AS run_buckets,
    ARRAY[sum(wait_buckets[1]), sum(wait_buckets[2]), sum(wait_buckets[3]), sum(wait_buckets[4]),
        sum(wait_buckets[5]), sum(wait_buckets[6]), sum(wait_buckets[7]), sum(wait_buckets[8]),
        sum(wait_buckets[9]), sum(wait_buckets[10]), sum(wait_buckets[11]), sum(wait_buckets[12]),
        sum(wait_buckets[13]), sum(wait_buckets[14]), sum(wait_buckets[15]), sum(wait_buckets[16])]::bigint[]
        AS wait_buckets
FROM tasks_throughput WHERE minute >= %(since)s::timestamptz GROUP BY 1 ORDER BY 1
"""

LAST = "SELECT date_bin(%(step)s::interval, clock_timestamp(), 'epoch') AS at, clock_timestamp() AS now"


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
    def run_median(self) -> float | None:
        return latency.percentile(self.run_buckets, 0.5)

    @property
    def run_slow(self) -> float | None:
        """The time in which 95 of 100 ran."""
        return latency.percentile(self.run_buckets, 0.95)

    @property
    def wait_median(self) -> float | None:
        return latency.percentile(self.wait_buckets, 0.5)

    @property
    def wait_slow(self) -> float | None:
        """The time within which 95 of 100 began, counted from when they were due."""
        return latency.percentile(self.wait_buckets, 0.95)


@dataclass(frozen=True)
class Past:
    """The slots of a span before `until`, to which no flush adds any more: a week's are summed up once by a process."""

    until: datetime
    slots: dict[datetime, Slot]


_past: dict[str, Past] = {}


def series(span: Span) -> list[Slot]:
    """Every slot of the span, also the empty ones, the present one last."""
    clock = fetch(connection, LAST, {"step": span.step})[0]
    first = clock["at"] - span.step * (span.slots - 1)
    past = _past.get(span.key) if settings.SHARED_LOOK_SECONDS else None
    known = past.slots if past else {}
    since = max(first, min(past.until, clock["at"])) if past else first
    found = known | {row["at"]: slot(row) for row in fetch(connection, SERIES, {"step": span.step, "since": since})}
    times = [first + span.step * number for number in range(span.slots)]
    slots = [found.get(at) or Slot(at) for at in times]
    keep(span, slots, clock["now"] - timedelta(minutes=SETTLE_MINUTES))
    return slots


def keep(span: Span, slots: list[Slot], settled: datetime) -> None:
    """Remember the slots that had ended by the time `settled`."""
    ended = {slot.at: slot for slot in slots if slot.at + span.step <= settled}
    if ended:
        _past[span.key] = Past(max(ended) + span.step, ended)


def slot(row: dict[str, Any]) -> Slot:
    """One row of the statement; a bucket that no row has is None there."""
    buckets = {name: [count or 0 for count in row[name]] for name in ("run_buckets", "wait_buckets")}
    return Slot(row["at"], row["completed"], row["failed"], **buckets)


@cache
def asking(key: str) -> Callable[[], list[Slot]]:
    """The question for this span, one object for each, as a look keeps answers by their question."""
    return partial(series, SPANS[key])
