"""The charts of the lab: throughput as bars, throughput over a varied number, and a run over time.

Coordinates are integers, because a locale's decimal comma would break an SVG path. The bars have no viewBox: widths
are percentages and heights are pixels, so that their text keeps its size on a phone. Curves have a logarithmic scale,
because patterns differ by factors.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from django.utils.translation import gettext as _

from dashboard.lab.conclusions import CLOSE, Case
from dashboard.lab.measure import Result, Span
from dashboard.numbers import decimal, milliseconds

ROW, LABEL, BAR_HEIGHT = 44, 16, 16  # pixels: a row, the line of its label, the bar below it


@dataclass(frozen=True)
class Bar:
    """One run. `share` is its length in percent of the width, always large enough to see."""

    label: str
    speed: float
    share: float
    is_unsafe: bool
    is_best: bool
    number: int
    was_ended: bool = False  # if ended before its time, the pattern need not be at fault

    @property
    def label_y(self) -> int:
        return self.number * ROW + LABEL

    @property
    def bar_y(self) -> int:
        return self.number * ROW + LABEL + 6

    @property
    def width(self) -> str:
        """Uses a decimal point in every language."""
        return f"{self.share:.1f}%"


@dataclass(frozen=True)
class Bars:
    bars: Sequence[Bar]
    summary: str
    bar: int = BAR_HEIGHT

    @property
    def high(self) -> int:
        return ROW * len(self.bars)


def draw_bars(cases: Sequence[Case], best: Sequence[Result] = ()) -> Bars | None:
    """Draw runs from the fastest to the slowest; None for fewer than two. `best`: results that fit the load."""
    if len(cases) < 2:
        return None
    ranked = sorted(cases, key=lambda case: -case.speed)
    most = max(ranked[0].speed, 0.1)
    bars = [
        Bar(
            label=case.name,
            speed=case.speed,
            share=max(0.5, 100 * case.speed / most),
            is_unsafe=not case.result.is_clean,
            is_best=any(case.result is result for result in best),
            number=number,
            was_ended=bool(case.result.stopped),
        )
        for number, case in enumerate(ranked)
    ]
    return Bars(bars, summary_of_bars(ranked))


def summary_of_bars(ranked: Sequence[Case]) -> str:
    """The chart's content in a sentence or two."""
    speeds = ", ".join(f"{case.name} {decimal(case.speed)}" for case in ranked)
    unsafe = [case.name for case in ranked if not case.result.is_clean]
    told = [_("Items a second, the fastest first: %(speeds)s.") % {"speeds": speeds}]
    if unsafe:
        told.append(_("Not clean: %(names)s.") % {"names": ", ".join(unsafe)})
    return " ".join(told)


GANTT_WIDTH, LANE, BAR = 10_000, 400, 260


@dataclass(frozen=True)
class Stretch:
    """One stretch of work, or the wait before it."""

    style: str
    x: int
    y: int
    width: int
    title: str


@dataclass(frozen=True)
class KillMark:
    """A kill."""

    x: int
    y: int


@dataclass(frozen=True)
class Gantt:
    """The chart; `lanes` are the workers from top to bottom."""

    bars: Sequence[Stretch]
    crosses: Sequence[KillMark]
    lanes: Sequence[int]
    seconds: float
    summary: str
    wide: int = GANTT_WIDTH
    bar: int = BAR

    @property
    def high(self) -> int:
        return LANE * max(1, len(self.lanes))

    @property
    def names(self) -> list[tuple[int, int]]:
        """The workers, each with the middle of its bars in percent from the upper edge."""
        return [(worker, 100 * (number * LANE + BAR // 2) // self.high) for number, worker in enumerate(self.lanes)]


def draw_gantt(spans: Sequence[Span], workers: int = 0) -> Gantt:
    """Draw these spans, with at least `workers` lanes, so that idle workers show too."""
    lanes = sorted({*range(workers), *(span.worker for span in spans)})
    seconds = max((span.ended for span in spans), default=0.0)
    work = [span for span in spans if span.kind != "kill"]
    kills = [span for span in spans if span.kind == "kill"]
    place = GanttScale(seconds, {worker: number * LANE for number, worker in enumerate(lanes)})
    bars = [bar for span in work for bar in place.bars(span)]
    crosses = [KillMark(place.x(span.began), place.tops[span.worker] + BAR // 2) for span in kills]
    return Gantt(bars, crosses, lanes, seconds, summary_of_gantt(work, kills, lanes, seconds))


@dataclass(frozen=True)
class GanttScale:
    """Maps times and workers to chart coordinates."""

    seconds: float
    tops: dict[int, int]

    def x(self, at: float) -> int:
        return round(GANTT_WIDTH * max(0.0, at) / self.seconds) if self.seconds else 0

    def bars(self, span: Span) -> list[Stretch]:
        """The work, and the wait before it if it is long enough to see."""
        start, end, top = self.x(span.began), self.x(span.ended), self.tops[span.worker]
        waited_from = self.x(span.began - span.wait)
        told = f"#{span.item} · {milliseconds(1000 * (span.ended - span.began))}"
        bars = [Stretch("duplicate" if span.is_duplicate else "work", start, top, max(20, end - start), told)]
        if start - waited_from > GANTT_WIDTH // 500:
            bars.insert(0, Stretch("wait", waited_from, top, start - waited_from, milliseconds(1000 * span.wait)))
        return bars


def summary_of_gantt(work: Sequence[Span], kills: Sequence[Span], lanes: Sequence[int], seconds: float) -> str:
    """The chart's content in one sentence."""
    told = {
        "workers": len(lanes),
        "items": len({span.item for span in work}),
        "seconds": decimal(seconds, 1),
        "duplicates": sum(span.is_duplicate for span in work),
        "kills": len(kills),
    }
    return (
        _("%(workers)d workers, %(items)d items in %(seconds)s s; %(duplicates)d done again, %(kills)d kills.") % told
    )


SWEEP_WIDTH, SWEEP_HEIGHT = 6000, 2000
STEPS = (1, 2, 5)  # grid lines at these multiples of each power of ten
MOST_GRID = 7

# The throughput of each pattern by the varied number.
Speeds = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Curve:
    """The throughput of one pattern over the values of a sweep."""

    pattern: str
    number: int
    points: Sequence[tuple[int, int]]

    @property
    def path(self) -> str:
        return "M" + "L".join(f"{x} {y}" for x, y in self.points)

    @property
    def dots(self) -> str:
        """A line of zero length at each point: its round ends draw a dot, however the chart is stretched."""
        return "".join(f"M{x} {y}h0" for x, y in self.points)


@dataclass(frozen=True)
class Crossing:
    """A crossing of two lines: `left` is clearly ahead up to the value `up_to`, `right` from `since` on."""

    left: str
    right: str
    up_to: int
    since: int
    x: int
    y: int

    def told(self, varied: str) -> str:
        words = {"left": self.left, "right": self.right, "what": varied, "up_to": self.up_to, "since": self.since}
        return (
            _(
                "%(left)s is ahead up to %(what)s=%(up_to)d, %(right)s from %(what)s=%(since)d on: "
                "their lines cross in between."
            )
            % words
        )


@dataclass(frozen=True)
class Grid:
    """A horizontal line and its label."""

    y: int
    label: str

    @property
    def share(self) -> int:
        """Its position from the upper edge in percent, for the label beside it."""
        return 100 * self.y // SWEEP_HEIGHT


@dataclass(frozen=True)
class Sweep:
    varied: str
    values: Sequence[int]
    curves: Sequence[Curve]
    crossings: Sequence[Crossing]
    grid: Sequence[Grid]
    told: Sequence[str]
    wide: int = SWEEP_WIDTH
    high: int = SWEEP_HEIGHT

    @property
    def places(self) -> list[tuple[int, int]]:
        """Each value, and its position from the left in percent."""
        return [(value, 100 * number // max(1, len(self.values) - 1)) for number, value in enumerate(self.values)]

    @property
    def summary(self) -> str:
        told = {"what": self.varied, "patterns": ", ".join(curve.pattern for curve in self.curves)}
        return " ".join([_("Items a second over %(what)s: %(patterns)s.") % told, *self.told])


def draw_sweep(cases: Sequence[Case], varied: str) -> Sweep | None:
    """Draw these runs; None if no pattern has two points."""
    speeds = by_pattern(cases, varied)
    shown = {pattern: points for pattern, points in speeds.items() if len(points) > 1}
    if not shown:
        return None
    values = sorted({value for points in shown.values() for value in points})
    place = SweepScale(values, [speed for points in shown.values() for speed in points.values()])
    curves = [
        Curve(pattern, number, [(place.x(value), place.y(speed)) for value, speed in sorted(points.items())])
        for number, (pattern, points) in enumerate(shown.items())
    ]
    found = [crossing for pair in combinations(shown, 2) for crossing in crossings(pair, shown, place)]
    told = [crossing.told(varied) for crossing in found] or list(without_crossing(shown, varied))
    return Sweep(varied, values, curves, found, list(place.grid()), told)


def by_pattern(cases: Iterable[Case], varied: str) -> dict[str, dict[int, float]]:
    """The throughput of the runs by pattern and value; the latest run of the same pair counts."""
    speeds: dict[str, dict[int, float]] = {}
    for case in cases:
        if case.speed > 0:
            speeds.setdefault(case.name, {})[int(case.plan.as_dict()[varied])] = case.speed
    return speeds


class SweepScale:
    """Maps values and throughputs to chart coordinates."""

    def __init__(self, values: Sequence[int], speeds: Sequence[float]) -> None:
        self.values = values
        self.low = math.log(min(speeds) / CLOSE)
        self.high = math.log(max(speeds) * CLOSE)

    def x(self, value: int) -> int:
        """The values are spaced evenly, because they are often 1, 2, 4, 8."""
        return round(SWEEP_WIDTH * self.values.index(value) / max(1, len(self.values) - 1))

    def y(self, speed: float) -> int:
        return round(SWEEP_HEIGHT * (self.high - math.log(speed)) / (self.high - self.low))

    def grid(self) -> Iterator[Grid]:
        """Round numbers between the edges; only powers of ten if there would be too many."""
        powers = range(math.floor(self.low / math.log(10)), math.ceil(self.high / math.log(10)) + 1)
        inside = [
            (step, step * 10.0**power)
            for power in powers
            for step in STEPS
            if self.low <= math.log(step * 10.0**power) <= self.high
        ]
        for step, speed in inside:
            if step == 1 or len(inside) <= MOST_GRID:
                yield Grid(self.y(speed), decimal(speed) if speed >= 1 else f"{speed:g}")


def crossings(pair: tuple[str, str], speeds: Speeds, place: SweepScale) -> Iterator[Crossing]:
    """Crossings where each of the two is ahead by more than the noise on one side."""
    one, other = pair
    shared = sorted(speeds[one].keys() & speeds[other].keys())
    leads = [(value, lead(speeds[one][value], speeds[other][value])) for value in shared]
    clear = [(value, ahead) for value, ahead in leads if ahead]
    for (up_to, before), (since, after) in pairwise(clear):
        if before != after:
            left, right = (one, other) if before > 0 else (other, one)
            yield Crossing(left, right, up_to, since, *meeting(left, right, (up_to, since), speeds, place))


def lead(one: float, other: float) -> int:
    """1 if the first is ahead by more than the noise, -1 if the second is, else 0.

    >>> lead(130, 100), lead(110, 100), lead(100, 130)
    (1, 0, -1)
    """
    return (one >= other * CLOSE) - (other >= one * CLOSE)


def meeting(left: str, right: str, between: tuple[int, int], speeds: Speeds, place: SweepScale) -> tuple[int, int]:
    """The point at which the drawn lines cross between two values."""
    shared = sorted(value for value in speeds[left].keys() & speeds[right].keys() if between[0] <= value <= between[1])
    for here, there in pairwise(shared):
        x, width = place.x(here), place.x(there) - place.x(here)
        begin = place.y(speeds[left][here]) - place.y(speeds[right][here])
        end = place.y(speeds[left][there]) - place.y(speeds[right][there])
        if begin * end <= 0 and begin != end:
            part = begin / (begin - end)
            y = place.y(speeds[left][here])
            return round(x + part * width), round(y + part * (place.y(speeds[left][there]) - y))
    return place.x(between[1]), place.y(speeds[left][between[1]])


def without_crossing(speeds: Speeds, varied: str) -> Iterator[str]:
    """For two patterns whose lines do not cross: which one is ahead, or that neither is."""
    if len(speeds) != 2:
        return
    (one, first), (other, second) = speeds.items()
    leads = {lead(first[value], second[value]) for value in first.keys() & second.keys()} - {0}
    told = {"one": one, "other": other, "what": varied}
    if not leads:
        yield _("%(one)s and %(other)s are equal within the noise over this range of %(what)s.") % told
    elif len(leads) == 1:
        ahead, behind = (one, other) if leads == {1} else (other, one)
        told |= {"one": ahead, "other": behind}
        yield _("%(one)s is never behind %(other)s over this range of %(what)s: their lines do not cross.") % told
