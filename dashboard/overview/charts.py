"""Charts as SVG, drawn on the server: no script, and the same data stand beside each as a table.

A chart is measured in its own units (WIDE by HIGH) and stretched to its place, so all text stands around it in HTML.
Coordinates are whole numbers: a language that writes a decimal comma cannot break them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from dashboard.numbers import decimal
from dashboard.overview.throughput import Slot, Span

WIDE, HIGH = 6000, 1200
# Times differ by a factor of a million: only a logarithm shows the fast and the slow ones together.
FASTEST_SECONDS, SLOWEST_SECONDS = 0.001, 3600.0
GRID_SECONDS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0)


@dataclass(frozen=True)
class Bar:
    """One slot of the throughput: what was completed, and above it what failed."""

    x: int
    width: int
    completed: int
    failed: int

    @property
    def completed_y(self) -> int:
        return HIGH - self.completed

    @property
    def failed_y(self) -> int:
        return HIGH - self.completed - self.failed


@dataclass(frozen=True)
class Curve:
    """One line of a chart: its class for the style sheet, its name, and the path."""

    style: str
    label: str
    path: str


@dataclass(frozen=True)
class Chart:
    """What a template draws. `top` is what the upper edge stands for, `summary` what the picture says."""

    summary: str
    top: str
    bars: Sequence[Bar] = ()
    curves: Sequence[Curve] = ()
    grid: Sequence[int] = ()
    wide: int = WIDE
    high: int = HIGH


def throughput(slots: Sequence[Slot], span: Span) -> Chart:
    """Bars of what was completed and what failed."""
    most = max((slot.completed + slot.failed for slot in slots), default=0)
    width = WIDE // max(1, len(slots))
    bars = [
        Bar(number * width, width * 4 // 5, share(slot.completed, most), share(slot.failed, most))
        for number, slot in enumerate(slots)
    ]
    return Chart(throughput_summary(slots, span, most), str(most), bars=bars)


def share(number: int, most: int) -> int:
    """A height in chart units; what is there at all is seen."""
    return max(round(HIGH * number / most), HIGH // 60) if number else 0


def throughput_summary(slots: Sequence[Slot], span: Span, most: int) -> str:
    told = {
        "span": span.label,
        "completed": sum(slot.completed for slot in slots),
        "failed": sum(slot.failed for slot in slots),
    }
    if not most:
        return _("%(span)s: nothing finished.") % told
    busiest = max(slots, key=lambda slot: slot.completed + slot.failed)
    told |= {"most": most, "time": f"{busiest.at:%Y-%m-%d %H:%M} UTC"}
    sentence = _("%(span)s: %(completed)d attempts completed and %(failed)d failed; most from %(time)s: %(most)d.")
    return sentence % told


def latencies(slots: Sequence[Slot], span: Span) -> Chart:
    """Curves of how long 95 of 100 tasks waited and ran, on a logarithmic scale."""
    curves = [
        Curve("wait", _("waited, 95 of 100"), path(slots, lambda slot: slot.wait_slow)),
        Curve("run", _("ran, 95 of 100"), path(slots, lambda slot: slot.run_slow)),
    ]
    grid = [height(seconds) for seconds in GRID_SECONDS]
    return Chart(latency_summary(slots, span), written(SLOWEST_SECONDS), curves=curves, grid=grid)


def path(slots: Sequence[Slot], measure: Callable[[Slot], float | None]) -> str:
    """The curve through the slots that have a value, with a gap where there is none."""
    width = WIDE // max(1, len(slots))
    parts: list[str] = []
    is_drawing = False
    for number, slot in enumerate(slots):
        seconds = measure(slot)
        if seconds is not None:
            x, y = number * width + width // 2, height(seconds)
            # A lone point would not be drawn without a line of its own.
            parts.append(f"L{x} {y}" if is_drawing else f"M{x - width // 4} {y}L{x} {y}")
        is_drawing = seconds is not None
    return "".join(parts)


def height(seconds: float) -> int:
    """Where a time stands between the edges of the chart.

    >>> height(0.0001), height(3600.0)
    (1200, 0)
    """
    low, high = math.log(FASTEST_SECONDS), math.log(SLOWEST_SECONDS)
    place = (math.log(max(seconds, FASTEST_SECONDS)) - low) / (high - low)
    return round(HIGH * (1 - min(1.0, place)))


def latency_summary(slots: Sequence[Slot], span: Span) -> str:
    told = {
        "span": span.label,
        "wait": worst(slot.wait_slow for slot in slots),
        "run": worst(slot.run_slow for slot in slots),
    }
    if not any(slot.completed for slot in slots):
        return _("%(span)s: nothing was completed.") % told
    sentence = _(
        "%(span)s: in the worst stretch, 95 of 100 tasks waited for at most %(wait)s, and ran for at most %(run)s."
    )
    return sentence % told


def worst(times: Iterable[float | None]) -> str:
    return written(max((seconds for seconds in times if seconds is not None), default=None))


def written(seconds: float | None) -> str:
    """A time as a table and an axis show it.

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
