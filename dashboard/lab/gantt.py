"""The chart of a run: a lane per worker, a bar per item, with waits, kills and duplicates marked.

Coordinates are integers, because a locale's decimal comma would break an SVG path.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from dashboard.lab.measure import Span
from dashboard.numbers import decimal, milliseconds

WIDE, LANE, BAR = 10_000, 400, 260


@dataclass(frozen=True)
class Stretch:
    """One stretch of work, or the wait before it."""

    style: str
    x: int
    y: int
    width: int
    title: str


@dataclass(frozen=True)
class Cross:
    """A kill."""

    x: int
    y: int


@dataclass(frozen=True)
class Gantt:
    """The chart; `lanes` are the workers from top to bottom."""

    bars: Sequence[Stretch]
    crosses: Sequence[Cross]
    lanes: Sequence[int]
    seconds: float
    summary: str
    wide: int = WIDE
    bar: int = BAR

    @property
    def high(self) -> int:
        return LANE * max(1, len(self.lanes))

    @property
    def names(self) -> list[tuple[int, int]]:
        """The workers, each with the middle of its bars in percent from the upper edge."""
        return [(worker, 100 * (number * LANE + BAR // 2) // self.high) for number, worker in enumerate(self.lanes)]


def draw(spans: Sequence[Span], workers: int = 0) -> Gantt:
    """Draw these spans, with at least `workers` lanes, so that idle workers show too."""
    lanes = sorted({*range(workers), *(span.worker for span in spans)})
    seconds = max((span.ended for span in spans), default=0.0)
    work = [span for span in spans if span.kind != "kill"]
    kills = [span for span in spans if span.kind == "kill"]
    place = Place(seconds, {worker: number * LANE for number, worker in enumerate(lanes)})
    bars = [bar for span in work for bar in place.bars(span)]
    crosses = [Cross(place.x(span.began), place.tops[span.worker] + BAR // 2) for span in kills]
    return Gantt(bars, crosses, lanes, seconds, summary(work, kills, lanes, seconds))


@dataclass(frozen=True)
class Place:
    """Maps times and workers to chart coordinates."""

    seconds: float
    tops: dict[int, int]

    def x(self, at: float) -> int:
        return round(WIDE * max(0.0, at) / self.seconds) if self.seconds else 0

    def bars(self, span: Span) -> list[Stretch]:
        """The work, and the wait before it if it is long enough to see."""
        start, end, top = self.x(span.began), self.x(span.ended), self.tops[span.worker]
        waited_from = self.x(span.began - span.wait)
        told = f"#{span.item} · {milliseconds(1000 * (span.ended - span.began))}"
        bars = [Stretch("duplicate" if span.is_duplicate else "work", start, top, max(20, end - start), told)]
        if start - waited_from > WIDE // 500:
            bars.insert(0, Stretch("wait", waited_from, top, start - waited_from, milliseconds(1000 * span.wait)))
        return bars


def summary(work: Sequence[Span], kills: Sequence[Span], lanes: Sequence[int], seconds: float) -> str:
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
