"""The chart of a sweep: each pattern's throughput over the varied number, and where the lines cross.

The scale is logarithmic, because patterns differ by factors. Coordinates are integers, because a locale's decimal comma
would break an SVG path.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from django.utils.translation import gettext as _

from dashboard.lab.conclusions import CLOSE, Case
from dashboard.numbers import decimal

WIDE, HIGH = 6000, 2000
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
        return 100 * self.y // HIGH


@dataclass(frozen=True)
class Sweep:
    varied: str
    values: Sequence[int]
    curves: Sequence[Curve]
    crossings: Sequence[Crossing]
    grid: Sequence[Grid]
    told: Sequence[str]
    wide: int = WIDE
    high: int = HIGH

    @property
    def places(self) -> list[tuple[int, int]]:
        """Each value, and its position from the left in percent."""
        return [(value, 100 * number // max(1, len(self.values) - 1)) for number, value in enumerate(self.values)]

    @property
    def summary(self) -> str:
        told = {"what": self.varied, "patterns": ", ".join(curve.pattern for curve in self.curves)}
        return " ".join([_("Items a second over %(what)s: %(patterns)s.") % told, *self.told])


def draw(cases: Sequence[Case], varied: str) -> Sweep | None:
    """Draw these runs; None if no pattern has two points."""
    speeds = by_pattern(cases, varied)
    shown = {pattern: points for pattern, points in speeds.items() if len(points) > 1}
    if not shown:
        return None
    values = sorted({value for points in shown.values() for value in points})
    place = Place(values, [speed for points in shown.values() for speed in points.values()])
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


class Place:
    """Maps values and throughputs to chart coordinates."""

    def __init__(self, values: Sequence[int], speeds: Sequence[float]) -> None:
        self.values = values
        self.low = math.log(min(speeds) / CLOSE)
        self.high = math.log(max(speeds) * CLOSE)

    def x(self, value: int) -> int:
        """The values are spaced evenly, because they are often 1, 2, 4, 8."""
        return round(WIDE * self.values.index(value) / max(1, len(self.values) - 1))

    def y(self, speed: float) -> int:
        return round(HIGH * (self.high - math.log(speed)) / (self.high - self.low))

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


def crossings(pair: tuple[str, str], speeds: Speeds, place: Place) -> Iterator[Crossing]:
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


def meeting(left: str, right: str, between: tuple[int, int], speeds: Speeds, place: Place) -> tuple[int, int]:
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
