"""Draw finished attempts and their latency on the server, as bars and curves with axes and the same in words."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from django.utils.translation import gettext as _

from dashboard.numbers import decimal
from dashboard.series import Slot, Span
from tasks.queue import throughput
from tasks.support.durations import spoken


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
            at=clock_time(slot.at, span.clock),
            completed=decimal(slot.completed),
            failed=decimal(slot.failed),
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
    first, middle, last = (clock_time(slot.at, span.clock) for slot in (slots[0], slots[len(slots) // 2], slots[-1]))
    return [first, middle, f"{last} UTC"]


@lru_cache(1000)
def clock_time(at: datetime, clock: str) -> str:
    return at.astimezone(UTC).strftime(clock)


WIDE, HIGH = 6000, 1200
# A logarithmic scale of whole powers of ten: the times differ by a factor of a million.
FASTEST_SECONDS, SLOWEST_SECONDS = 0.001, 10_000.0


class Bar(NamedTuple):
    """One slot of a chart: what failed stacked on what completed, and on both what is still to come."""

    x: int
    width: int
    completed: int
    failed: int
    completed_y: int
    failed_y: int
    coming: int = 0
    coming_y: int = 0


class Curve(NamedTuple):
    """One line of a chart: its class for the style sheet, its name, and the path."""

    style: str
    label: str
    path: str


class Chart(NamedTuple):
    """A chart for the template.

    `ticks`: the values at the left, from the top, as far from each other as the lines of the `grid`. `points`: each
    slot in words, a line each. `summary` describes the chart in words.
    """

    summary: str
    ticks: Sequence[str]
    grid: Sequence[int]
    points: str
    last: int
    bars: Sequence[Bar] = ()
    curves: Sequence[Curve] = ()
    wide: int = WIDE
    high: int = HIGH


def throughput_chart(slots: Sequence[Slot], span: Span) -> Chart:
    most = max((slot.completed + slot.failed for slot in slots), default=0)
    top = round_up(most)
    width = WIDE // max(1, len(slots))
    bars, points = [], []
    said = _("%(time)s: %(completed)s completed, %(failed)s failed")
    for number, slot in enumerate(slots):
        completed, failed = share(slot.completed, top), share(slot.failed, top)
        bars.append(Bar(number * width, width * 4 // 5, completed, failed, HIGH - completed, HIGH - completed - failed))
        values = {"completed": decimal(slot.completed), "failed": decimal(slot.failed)}
        points.append(said % {"time": f"{clock_time(slot.at, span.clock)} UTC", **values})
    ticks, grid = count_scale(top)
    summary = throughput_summary(slots, span, most)
    return Chart(summary, ticks, grid, "\n".join(points), len(slots) - 1, bars=bars)


def count_scale(top: int) -> tuple[list[str], tuple[int, ...]]:
    """The ticks and the grid of a chart of counts; no half of an odd number."""
    if top % 2:
        return [decimal(top), "0"], (0, HIGH)
    return [decimal(top), decimal(top // 2), "0"], (0, HIGH // 2, HIGH)


def round_up(most: int) -> int:
    """The next number above that is 1, 2 or 5 with zeros.

    >>> round_up(0), round_up(7), round_up(118), round_up(2000)
    (1, 10, 200, 2000)
    """
    power = 10 ** max(0, len(str(most)) - 1)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= most)


def share(number: int, most: int) -> int:
    """Scale a count to chart units; any count above zero stays visible."""
    return max(round(HIGH * number / most), HIGH // 60) if number else 0


def throughput_summary(slots: Sequence[Slot], span: Span, most: int) -> str:
    if not most:
        return _("%(span)s: nothing finished.") % {"span": span.label}
    busiest = max(slots, key=lambda slot: slot.completed + slot.failed)
    sentence = _("%(span)s: %(completed)s attempts completed and %(failed)s failed; most from %(time)s: %(most)s.")
    return sentence % {
        "span": span.label,
        "completed": decimal(sum(slot.completed for slot in slots)),
        "failed": decimal(sum(slot.failed for slot in slots)),
        "most": decimal(most),
        "time": f"{clock_time(busiest.at, span.clock)} UTC",
    }


def latencies(slots: Sequence[Slot], span: Span) -> Chart:
    """Draw p95 wait and p95 run on a logarithmic scale, as many powers of ten as the values need."""
    values = [value for slot in slots for value in (slot.wait_slow, slot.run_slow) if value is not None]
    low, high = scale(values)
    curves = [
        Curve("wait", _("p95 wait"), path(slots, lambda slot: slot.wait_slow, (low, high))),
        Curve("run", _("p95 run"), path(slots, lambda slot: slot.run_slow, (low, high))),
    ]
    powers = range(high, low - 1, -1)
    grid = [height(10.0**power, (low, high)) for power in powers]
    said = _("%(time)s: p95 wait %(wait)s, p95 run %(run)s")
    points = []
    for slot in slots:
        slow = {"wait": written(slot.wait_slow), "run": written(slot.run_slow)}
        points.append(said % {"time": f"{clock_time(slot.at, span.clock)} UTC", **slow})
    ticks = [spoken(10**power) if power >= 0 else written(10.0**power) for power in powers]
    return Chart(latency_summary(slots, span), ticks, grid, "\n".join(points), len(slots) - 1, curves=curves)


def scale(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten between which these seconds lie, at least two apart.

    >>> scale([]), scale([0.004, 3.0])
    ((-3, -1), (-3, 1))
    """
    fastest, slowest = max(min(values, default=0.0), FASTEST_SECONDS), min(max(values, default=0.0), SLOWEST_SECONDS)
    low = math.floor(math.log10(fastest))
    return low, max(low + 2, math.ceil(math.log10(max(slowest, FASTEST_SECONDS))))


def path(slots: Sequence[Slot], measure: Callable[[Slot], float | None], powers: tuple[int, int]) -> str:
    """The SVG path through the slots that have a value, with gaps between."""
    width = WIDE // max(1, len(slots))
    parts: list[str] = []
    is_drawing = False
    for number, slot in enumerate(slots):
        seconds = measure(slot)
        if seconds is not None:
            x, y = number * width + width // 2, height(seconds, powers)
            # A lone point needs a short line, or SVG draws nothing.
            parts.append(f"L{x} {y}" if is_drawing else f"M{x - width // 4} {y}L{x} {y}")
        is_drawing = seconds is not None
    return "".join(parts)


def height(seconds: float, powers: tuple[int, int]) -> int:
    """Map a time to a y coordinate, on a logarithmic scale between two powers of ten.

    >>> height(0.0001, (-3, 1)), height(10.0, (-3, 1)), height(0.1, (-3, 1))
    (1200, 0, 600)
    """
    low, high = powers
    part = (math.log10(max(seconds, 10.0**low)) - low) / (high - low)
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
