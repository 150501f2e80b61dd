"""Finished attempts and their latency over an hour, a day or a week, from the rollup."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import NamedTuple

from django.db import connection
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.numbers import decimal
from tasks.queue import throughput
from tasks.queue.throughput import SLOT
from tasks.support.database import fetch

# Half-hour slots as far as they have been summed, single minutes after that. One array element at a time: to unnest
# 32 counts of each row took eight times as long.
SERIES = """
SELECT date_bin(%(step)s::interval, at, 'epoch') AS at,
    sum(completed)::bigint AS completed, sum(failed)::bigint AS failed,
    ARRAY[sum(run_buckets[1]), sum(run_buckets[2]), sum(run_buckets[3]), sum(run_buckets[4]), sum(run_buckets[5]),
        sum(run_buckets[6]), sum(run_buckets[7]), sum(run_buckets[8]), sum(run_buckets[9]), sum(run_buckets[10]),
        sum(run_buckets[11]), sum(run_buckets[12]), sum(run_buckets[13]), sum(run_buckets[14]),
        sum(run_buckets[15]), sum(run_buckets[16])]::bigint[] AS run_buckets,
    ARRAY[sum(wait_buckets[1]), sum(wait_buckets[2]), sum(wait_buckets[3]), sum(wait_buckets[4]),
        sum(wait_buckets[5]), sum(wait_buckets[6]), sum(wait_buckets[7]), sum(wait_buckets[8]),
        sum(wait_buckets[9]), sum(wait_buckets[10]), sum(wait_buckets[11]), sum(wait_buckets[12]),
        sum(wait_buckets[13]), sum(wait_buckets[14]), sum(wait_buckets[15]), sum(wait_buckets[16])]::bigint[]
        AS wait_buckets
FROM (
    SELECT at, completed, failed, run_buckets, wait_buckets FROM tasks_throughputslot
    WHERE at >= %(since)s::timestamptz AND at < %(minutes_since)s::timestamptz
    UNION ALL
    SELECT minute, completed, failed, run_buckets, wait_buckets FROM tasks_throughput
    WHERE minute >= %(minutes_since)s::timestamptz
) AS part
GROUP BY 1 ORDER BY 1
"""

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
        Span("1h", gettext_lazy("Last hour"), timedelta(minutes=1), 60, 5),
        Span("24h", gettext_lazy("Last 24 hours"), timedelta(minutes=30), 48, 60),
        Span("7d", gettext_lazy("Last 7 days"), timedelta(hours=2), 84, 300),
    )
}


@dataclass(frozen=True)
class Slot:
    """Attempts that finished in one slot. `run_slow` and `wait_slow` are p95 in seconds, None without completions."""

    at: datetime
    completed: int = 0
    failed: int = 0
    run_buckets: Sequence[int] = ()
    wait_buckets: Sequence[int] = ()

    @cached_property
    def run_slow(self) -> float | None:
        return throughput.percentile(self.run_buckets, 0.95)

    @cached_property
    def wait_slow(self) -> float | None:
        return throughput.percentile(self.wait_buckets, 0.95)


def series(span: Span) -> list[Slot]:
    """All slots of the span, including empty ones; the current slot is last."""
    last = fetch(connection, LAST, {"step": span.step, "slot": SLOT})[0]
    first = last["at"] - span.step * (span.slots - 1)
    # Steps shorter than half an hour need single minutes.
    added_up_until = last["added_up_until"] if span.step >= SLOT else None
    since = {"since": first, "minutes_since": max(first, added_up_until or first)}
    found = {}
    for row in fetch(connection, SERIES, {"step": span.step, **since}):
        # A bucket that no row fills is NULL.
        run, wait = ([count or 0 for count in row[name]] for name in ("run_buckets", "wait_buckets"))
        found[row["at"]] = Slot(row["at"], row["completed"], row["failed"], run, wait)
    times = [first + span.step * number for number in range(span.slots)]
    return [found.get(at) or Slot(at) for at in times]


@cache
def query_of(key: str) -> Callable[[], list[Slot]]:
    """The query of one span. It is one cached object per span, because answers are cached by their callable."""
    return partial(series, SPANS[key])


class SlotRow(NamedTuple):
    """One line of the table below the charts, in texts that the page prints as they are."""

    id: str
    at: str
    completed: str
    failed: str
    wait_median: str
    wait_slow: str
    run_median: str
    run_slow: str


def slot_rows(slots: Sequence[Slot], span: Span) -> list[SlotRow]:
    """The slots in which something finished, the latest first."""
    return [
        SlotRow(
            id=f"slot-{int(slot.at.timestamp())}",
            at=clock_time(slot.at, span),
            completed=str(slot.completed),
            failed=str(slot.failed),
            wait_median=written(throughput.percentile(slot.wait_buckets, 0.5)),
            wait_slow=written(slot.wait_slow),
            run_median=written(throughput.percentile(slot.run_buckets, 0.5)),
            run_slow=written(slot.run_slow),
        )
        for slot in reversed(slots)
        if slot.completed or slot.failed
    ]


def axis(slots: Sequence[Slot], span: Span) -> list[str]:
    """The times below a chart: at its left end, in the middle and at its right end."""
    first, middle, last = (clock_time(slot.at, span) for slot in (slots[0], slots[len(slots) // 2], slots[-1]))
    return [first, middle, f"{last} UTC"]


def clock_time(at: datetime, span: Span) -> str:
    return at.astimezone(UTC).strftime(span.clock)


WIDE, HIGH = 6000, 1200
# A logarithmic scale: the times differ by a factor of a million.
FASTEST_SECONDS, SLOWEST_SECONDS = 0.001, 3600.0
GRID_SECONDS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0)


class Bar(NamedTuple):
    """One slot of the throughput chart: failed attempts stacked on completed ones."""

    x: int
    width: int
    completed: int
    failed: int
    completed_y: int
    failed_y: int


class Curve(NamedTuple):
    """One line of a chart: its class for the style sheet, its name, and the path."""

    style: str
    label: str
    path: str


class Chart(NamedTuple):
    """A chart for the template. `top` labels the upper edge, `summary` describes the chart in words."""

    summary: str
    top: str
    bars: Sequence[Bar] = ()
    curves: Sequence[Curve] = ()
    grid: Sequence[int] = ()
    wide: int = WIDE
    high: int = HIGH


def throughput_chart(slots: Sequence[Slot], span: Span) -> Chart:
    most = max((slot.completed + slot.failed for slot in slots), default=0)
    width = WIDE // max(1, len(slots))
    bars = []
    for number, slot in enumerate(slots):
        completed, failed = share(slot.completed, most), share(slot.failed, most)
        bars.append(Bar(number * width, width * 4 // 5, completed, failed, HIGH - completed, HIGH - completed - failed))
    return Chart(throughput_summary(slots, span, most), str(most), bars=bars)


def share(number: int, most: int) -> int:
    """Scale a count to chart units; any count above zero stays visible."""
    return max(round(HIGH * number / most), HIGH // 60) if number else 0


def throughput_summary(slots: Sequence[Slot], span: Span, most: int) -> str:
    if not most:
        return _("%(span)s: nothing finished.") % {"span": span.label}
    busiest = max(slots, key=lambda slot: slot.completed + slot.failed)
    sentence = _("%(span)s: %(completed)d attempts completed and %(failed)d failed; most from %(time)s: %(most)d.")
    return sentence % {
        "span": span.label,
        "completed": sum(slot.completed for slot in slots),
        "failed": sum(slot.failed for slot in slots),
        "most": most,
        "time": f"{busiest.at:%Y-%m-%d %H:%M} UTC",
    }


def latencies(slots: Sequence[Slot], span: Span) -> Chart:
    """Draw p95 wait and p95 run on a logarithmic scale."""
    curves = [
        Curve("wait", _("p95 wait"), path(slots, lambda slot: slot.wait_slow)),
        Curve("run", _("p95 run"), path(slots, lambda slot: slot.run_slow)),
    ]
    grid = [height(seconds) for seconds in GRID_SECONDS]
    return Chart(latency_summary(slots, span), written(SLOWEST_SECONDS), curves=curves, grid=grid)


def path(slots: Sequence[Slot], measure: Callable[[Slot], float | None]) -> str:
    """The SVG path through the slots that have a value, with gaps between."""
    width = WIDE // max(1, len(slots))
    parts: list[str] = []
    is_drawing = False
    for number, slot in enumerate(slots):
        seconds = measure(slot)
        if seconds is not None:
            x, y = number * width + width // 2, height(seconds)
            # A lone point needs a short line, or SVG draws nothing.
            parts.append(f"L{x} {y}" if is_drawing else f"M{x - width // 4} {y}L{x} {y}")
        is_drawing = seconds is not None
    return "".join(parts)


def height(seconds: float) -> int:
    """Map a time to a y coordinate, on a logarithmic scale.

    >>> height(0.0001), height(3600.0)
    (1200, 0)
    """
    low, high = math.log(FASTEST_SECONDS), math.log(SLOWEST_SECONDS)
    part = (math.log(max(seconds, FASTEST_SECONDS)) - low) / (high - low)
    return round(HIGH * (1 - min(1.0, part)))


def latency_summary(slots: Sequence[Slot], span: Span) -> str:
    if not any(slot.completed for slot in slots):
        return _("%(span)s: nothing was completed.") % {"span": span.label}
    sentence = _("%(span)s: the longest p95 wait was %(wait)s, the longest p95 run %(run)s.")
    waits = (slot.wait_slow for slot in slots if slot.wait_slow is not None)
    runs = (slot.run_slow for slot in slots if slot.run_slow is not None)
    worst = {"wait": written(max(waits, default=None)), "run": written(max(runs, default=None))}
    return sentence % {"span": span.label, **worst}


def written(seconds: float | None) -> str:
    """Format seconds for a table or an axis.

    >>> written(0.0042), written(2.5), written(90.0), written(3600.0)
    ('4 ms', '2.5 s', '90 s', '60 min')
    """
    if seconds is None:
        return "\u2013"
    if seconds < 1:
        return _("%(number)d ms") % {"number": round(1000 * seconds)}
    if seconds < 10:
        return _("%(number)s s") % {"number": decimal(seconds, 1)}
    if seconds < 120:
        return _("%(number)d s") % {"number": round(seconds)}
    return _("%(number)d min") % {"number": round(seconds / 60)}
