"""The charts of the lab: throughput as bars, throughput over a varied number, and a run over time.

Coordinates are integers, because a locale's decimal comma would break an SVG path. The bars have no viewBox: widths
are percentages and heights are pixels, so that their text keeps its size on a phone. Curves have a logarithmic scale,
because patterns differ by factors.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from django.utils.translation import gettext as _

from dashboard.lab import conclusions
from dashboard.lab.conclusions import CLOSE, Case
from dashboard.lab.measure import Span
from dashboard.numbers import decimal, milliseconds

ROW, LABEL, BAR_HEIGHT = 44, 16, 16  # pixels: a row, the line of its label, the bar below it


class Bar(NamedTuple):
    """One run. `width` has a decimal point in every language, and is always large enough to see."""

    label: str
    speed: float
    width: str
    label_y: int
    bar_y: int
    is_unsafe: bool
    is_best: bool
    was_ended: bool  # if ended before its time, the pattern need not be at fault


class Bars(NamedTuple):
    bars: Sequence[Bar]
    summary: str
    high: int
    bar: int = BAR_HEIGHT


def draw_bars(cases: Sequence[Case], best: Sequence[Case] = ()) -> Bars | None:
    """Draw runs from the fastest to the slowest; None for fewer than two. `best`: those that fit the load."""
    if len(cases) < 2:
        return None
    ranked = sorted(cases, key=lambda case: -case.speed)
    most = max(ranked[0].speed, 0.1)
    bars = [
        Bar(
            label=case.name,
            speed=case.speed,
            width=f"{max(0.5, 100 * case.speed / most):.1f}%",
            label_y=number * ROW + LABEL,
            bar_y=number * ROW + LABEL + 6,
            is_unsafe=not case.result.is_clean,
            is_best=any(case is one for one in best),
            was_ended=bool(case.result.stopped),
        )
        for number, case in enumerate(ranked)
    ]
    speeds = ", ".join(f"{bar.label} {decimal(bar.speed)}" for bar in bars)
    summary = _("Items a second, the fastest first: %(speeds)s.") % {"speeds": speeds}
    if unsafe := [bar.label for bar in bars if bar.is_unsafe]:
        summary += " " + _("Not clean: %(names)s.") % {"names": ", ".join(unsafe)}
    return Bars(bars, summary, ROW * len(bars))


GANTT_WIDTH, LANE, BAR = 10_000, 400, 260
SHORTEST_WAIT = GANTT_WIDTH // 500  # shorter ones cannot be seen


class Stretch(NamedTuple):
    """One stretch of work, or the wait before it."""

    style: str
    x: int
    y: int
    width: int
    title: str


class Point(NamedTuple):
    x: int
    y: int


class Gantt(NamedTuple):
    """The chart; `names` are the workers, each with the middle of its bars in percent from the upper edge."""

    bars: Sequence[Stretch]
    crosses: Sequence[Point]
    names: Sequence[tuple[int, int]]
    seconds: float
    high: int
    summary: str
    wide: int = GANTT_WIDTH
    bar: int = BAR


def draw_gantt(spans: Sequence[Span], workers: int = 0) -> Gantt:
    """Draw these spans, with at least `workers` lanes, so that idle workers show too."""
    lanes = sorted({*range(workers), *(span.worker for span in spans)})
    tops = {worker: number * LANE for number, worker in enumerate(lanes)}
    seconds = max((span.ended for span in spans), default=0.0)

    def x(at: float) -> int:
        return round(GANTT_WIDTH * max(0.0, at) / seconds) if seconds else 0

    work = [span for span in spans if span.kind != "kill"]
    kills = [Point(x(span.began), tops[span.worker] + BAR // 2) for span in spans if span.kind == "kill"]
    bars = []
    for span in work:
        waited_from, start, end, top = x(span.began - span.wait), x(span.began), x(span.ended), tops[span.worker]
        if start - waited_from > SHORTEST_WAIT:
            bars.append(Stretch("wait", waited_from, top, start - waited_from, milliseconds(1000 * span.wait)))
        title = f"#{span.item} · {milliseconds(1000 * (span.ended - span.began))}"
        style = "duplicate" if span.is_duplicate else "work"
        bars.append(Stretch(style, start, top, max(20, end - start), title))
    numbers = {
        "workers": len(lanes),
        "items": len({span.item for span in work}),
        "seconds": decimal(seconds, 1),
        "duplicates": sum(span.is_duplicate for span in work),
        "kills": len(kills),
    }
    text = _("%(workers)d workers, %(items)d items in %(seconds)s s; %(duplicates)d done again, %(kills)d kills.")
    high = LANE * max(1, len(lanes))
    names = [(worker, 100 * (top + BAR // 2) // high) for worker, top in tops.items()]
    return Gantt(bars, kills, names, seconds, high, text % numbers)


SWEEP_WIDTH, SWEEP_HEIGHT = 6000, 2000
STEPS = (1, 2, 5)  # grid lines at these multiples of each power of ten
MOST_GRID = 7

# The throughput of each pattern by the varied number.
Speeds = Mapping[str, Mapping[int, float]]


class Curve(NamedTuple):
    pattern: str
    number: int
    points: Sequence[Point]

    @property
    def path(self) -> str:
        return "M" + "L".join(f"{x} {y}" for x, y in self.points)

    @property
    def dots(self) -> str:
        """A line of zero length at each point: its round ends draw a dot, however the chart is stretched."""
        return "".join(f"M{x} {y}h0" for x, y in self.points)


class Crossing(NamedTuple):
    """A crossing of two lines, and the sentence that tells of it."""

    sentence: str
    x: int
    y: int


class GridLine(NamedTuple):
    """A horizontal line and its label; `share`: its position from the upper edge in percent."""

    y: int
    share: int
    label: str


class Sweep(NamedTuple):
    """The chart; `places` are the values, each with its position from the left in percent."""

    places: Sequence[tuple[int, int]]
    curves: Sequence[Curve]
    crossings: Sequence[Crossing]
    grid: Sequence[GridLine]
    conclusion: list[str]
    summary: str
    wide: int = SWEEP_WIDTH
    high: int = SWEEP_HEIGHT


def draw_sweep(cases: Sequence[Case], varied: str) -> Sweep | None:
    """Draw these runs; None if no pattern has two points. The latest run of a pattern and value counts."""
    measured: dict[str, dict[int, float]] = {}
    for case in cases:
        if case.speed > 0:
            measured.setdefault(case.name, {})[int(getattr(case.plan, varied))] = case.speed
    speeds = {pattern: dict(sorted(found.items())) for pattern, found in measured.items() if len(found) > 1}
    if not speeds:
        return None
    scale = SweepScale(speeds)
    curves = [
        Curve(pattern, number, [scale.point(value, speed) for value, speed in found.items()])
        for number, (pattern, found) in enumerate(speeds.items())
    ]
    crossings = [found for pair in combinations(speeds, 2) for found in crossings_of(pair, speeds, scale, varied)]
    conclusion = [crossing.sentence for crossing in crossings] or list(without_crossing(speeds, varied))
    heading = _("Items a second over %(what)s: %(patterns)s.") % {"what": varied, "patterns": ", ".join(speeds)}
    places = [(value, 100 * scale.x(value) // SWEEP_WIDTH) for value in scale.values]
    return Sweep(places, curves, crossings, list(scale.grid()), conclusion, " ".join([heading, *conclusion]))


def conclusion_of(cases: Sequence[Case], varied: str) -> list[str]:
    """The conclusions from a comparison, or from a sweep over the number `varied`."""
    if not varied:
        return conclusions.drawn(cases)
    sweep = draw_sweep(cases, varied)
    return sweep.conclusion if sweep else []


class SweepScale:
    def __init__(self, speeds: Speeds) -> None:
        every = [speed for found in speeds.values() for speed in found.values()]
        self.values = sorted({value for found in speeds.values() for value in found})
        self.low, self.high = math.log(min(every) / CLOSE), math.log(max(every) * CLOSE)

    def x(self, value: int) -> int:
        """The values are spaced evenly, because they are often 1, 2, 4, 8."""
        return round(SWEEP_WIDTH * self.values.index(value) / (len(self.values) - 1))

    def y(self, speed: float) -> int:
        return round(SWEEP_HEIGHT * (self.high - math.log(speed)) / (self.high - self.low))

    def point(self, value: int, speed: float) -> Point:
        return Point(self.x(value), self.y(speed))

    def grid(self) -> Iterator[GridLine]:
        """Round numbers between the edges; only powers of ten if there would be too many."""
        powers = range(math.floor(self.low / math.log(10)), math.ceil(self.high / math.log(10)) + 1)
        steps = [(step, step * 10.0**power) for power in powers for step in STEPS]
        inside = [(step, speed) for step, speed in steps if self.low <= math.log(speed) <= self.high]
        for step, speed in inside:
            if step == 1 or len(inside) <= MOST_GRID:
                y = self.y(speed)
                yield GridLine(y, 100 * y // SWEEP_HEIGHT, decimal(speed) if speed >= 1 else f"{speed:g}")


def crossings_of(pair: tuple[str, str], speeds: Speeds, scale: SweepScale, varied: str) -> Iterator[Crossing]:
    """Crossings where each of the two is ahead by more than the noise on one side."""
    one, other = pair
    text = _(
        "%(left)s is ahead up to %(what)s=%(up_to)d, %(right)s from %(what)s=%(since)d on: "
        "their lines cross in between."
    )
    shared = sorted(speeds[one].keys() & speeds[other].keys())
    leads = [(value, lead(speeds[one][value], speeds[other][value])) for value in shared]
    for (up_to, before), (since, after) in pairwise((value, ahead) for value, ahead in leads if ahead):
        if before != after:
            left, right = (one, other) if before > 0 else (other, one)
            between = [value for value in shared if up_to <= value <= since]
            lines = [[scale.point(value, speeds[name][value]) for value in between] for name in pair]
            words = {"left": left, "right": right, "what": varied, "up_to": up_to, "since": since}
            yield Crossing(text % words, *meeting(*lines))


def lead(one: float, other: float) -> int:
    """1 if the first is ahead by more than the noise, -1 if the second is, else 0.

    >>> lead(130, 100), lead(110, 100), lead(100, 130)
    (1, 0, -1)
    """
    return (one >= other * CLOSE) - (other >= one * CLOSE)


def meeting(one: Sequence[Point], other: Sequence[Point]) -> Point:
    """The point at which two lines meet, of which each is above the other at one end.

    >>> meeting([Point(0, 0), Point(10, 20)], [Point(0, 10), Point(10, 10)])
    Point(x=5, y=10)
    """
    gaps = [below.y - above.y for below, above in zip(one, other, strict=True)]
    number = next(number for number, (gap, following) in enumerate(pairwise(gaps)) if gap * following <= 0)
    here, there = one[number], one[number + 1]
    part = gaps[number] / (gaps[number] - gaps[number + 1])
    return Point(round(here.x + part * (there.x - here.x)), round(here.y + part * (there.y - here.y)))


def without_crossing(speeds: Speeds, varied: str) -> Iterator[str]:
    """For two patterns whose lines do not cross: which one is ahead, or that neither is."""
    if len(speeds) != 2:
        return
    (one, first), (other, second) = speeds.items()
    leads = {lead(first[value], second[value]) for value in first.keys() & second.keys()} - {0}
    words = {"one": one, "other": other, "what": varied}
    if not leads:
        yield _("%(one)s and %(other)s are equal within the noise over this range of %(what)s.") % words
    elif len(leads) == 1:
        if leads == {-1}:
            words |= {"one": other, "other": one}
        yield _("%(one)s is never behind %(other)s over this range of %(what)s: their lines do not cross.") % words
