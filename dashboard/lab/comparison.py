"""Runs side by side: one table, and what follows from its numbers in words."""

from collections.abc import Sequence

from dashboard.lab.measure import Result
from dashboard.lab.patterns import PATTERNS
from tasks.commands.output import counted
from tasks.commands.output import table as aligned

HEADINGS = (
    "PATTERN",
    "ITEMS/S",
    "DUPLICATES",
    "LOST UPDATES",
    "LOST WORK",
    "LOST RACES",
    "INVERSIONS",
    "WAIT P50",
    "WAIT P95",
    "QUERIES/ITEM",
    "",
)
CLOSE = 1.25  # two runs on one machine differ by so much for no reason


def table(results: Sequence[Result], varied: Sequence[str] = ()) -> str:
    """The runs as a table for a terminal; `varied` says of each what was varied, as in "workers=4"."""
    labels = [
        f"{result.pattern} {what}".strip() for result, what in zip(results, varied or [""] * len(results), strict=True)
    ]
    return aligned(HEADINGS, [_row(label, result) for label, result in zip(labels, results, strict=True)])


def _row(label: str, result: Result) -> list[str]:
    return [
        label,
        f"{result.items_per_second:,.0f}",
        str(result.duplicates),
        str(result.lost_updates),
        str(result.lost_work),
        str(result.lost_races),
        str(result.order_inversions),
        f"{result.wait_ms_p50:.1f} ms",
        f"{result.wait_ms_p95:.1f} ms",
        f"{result.queries_per_item:.1f}",
        "" if result.is_clean else "UNSAFE" if not result.stopped else result.stopped,
    ]


def conclusion(results: Sequence[Result]) -> list[str]:
    """Sentences that the numbers bear out; nothing is said of what was not measured."""
    broken = [result for result in results if not result.is_clean]
    clean = sorted((result for result in results if result.is_clean), key=lambda result: -result.items_per_second)
    lines = [_told_broken(result) for result in broken]
    by_subject: dict[str, list[Result]] = {}
    for result in clean:
        by_subject.setdefault(PATTERNS[result.pattern].subject, []).append(result)
    lines += [_told_fastest(subject, ranked) for subject, ranked in by_subject.items()]
    lines += [_told_wasteful(result) for result in clean if result.repeated_calls]
    if not clean and results:
        lines.append("No pattern of this comparison was clean under this load.")
    return lines


def _told_broken(result: Result) -> str:
    found = {
        f"did {counted(result.duplicates, 'item')} again": result.duplicates > result.may_repeat,
        f"lost {counted(result.lost_updates, 'update')}": bool(result.lost_updates),
        f"lost {counted(result.lost_work, 'result')}": bool(result.lost_work),
        f"left {counted(result.unprocessed, 'item')}": bool(result.unprocessed),
        f"was ended ({result.stopped})": bool(result.stopped),
    }
    return f"{result.pattern} " + " and ".join(words for words, is_true in found.items() if is_true) + "."


def _told_fastest(subject: str, ranked: list[Result]) -> str:
    """The fastest clean pattern for one kind of rows, and those that are as fast within the noise."""
    best = ranked[0]
    if len(ranked) == 1:
        return f"For {subject}, {best.pattern} was clean: {best.items_per_second:,.0f} items a second."
    equal = [result.pattern for result in ranked[1:] if result.items_per_second * CLOSE >= best.items_per_second]
    told = f"For {subject}, {best.pattern} was the fastest clean pattern: {best.items_per_second:,.0f} items a second"
    if equal:
        told += f"; {', '.join(equal)} within the noise of it"
    slowest = ranked[-1]
    if slowest is not best and slowest.pattern not in equal:
        told += (
            f"; {slowest.pattern} took {best.items_per_second / max(slowest.items_per_second, 0.1):.1f} times as long"
        )
        told += f", {_why_slow(slowest)}"
    return f"{told}."


def _why_slow(result: Result) -> str:
    if result.wait_ms_p50 * result.items_per_second > 500:  # half of a second of each second and worker
        return f"most of it waiting ({result.wait_ms_p50:.1f} ms for each item)"
    if result.lost_races > result.items:
        return f"with {result.lost_races / result.items:.1f} lost races for each item"
    return f"with {result.queries_per_item:.1f} statements for each item"


def _told_wasteful(result: Result) -> str:
    times = result.repeated_calls
    return f"{result.pattern} repeated the slow call {times} times: that must do no harm when it is repeated."
