"""A bar chart of the throughput of several runs, with its own labels.

It has no viewBox: widths are percentages and heights are pixels, so that the text keeps its size on a phone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from dashboard.lab.conclusions import Case
from dashboard.lab.measure import Result
from dashboard.numbers import decimal

ROW, LABEL, BAR = 44, 16, 16  # pixels: a row, the line of its label, the bar below it


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
    bar: int = BAR

    @property
    def high(self) -> int:
        return ROW * len(self.bars)


def draw(cases: Sequence[Case], best: Sequence[Result] = ()) -> Bars | None:
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
    return Bars(bars, summary(ranked))


def summary(ranked: Sequence[Case]) -> str:
    """The chart's content in a sentence or two."""
    speeds = ", ".join(f"{case.name} {decimal(case.speed)}" for case in ranked)
    unsafe = [case.name for case in ranked if not case.result.is_clean]
    told = [_("Items a second, the fastest first: %(speeds)s.") % {"speeds": speeds}]
    if unsafe:
        told.append(_("Not clean: %(names)s.") % {"names": ", ".join(unsafe)})
    return " ".join(told)
