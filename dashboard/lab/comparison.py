"""Runs side by side as a table for a terminal."""

from collections.abc import Sequence

from dashboard.lab.measure import Result
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


def table(results: Sequence[Result], varied: Sequence[str] = ()) -> str:
    """The runs as a table for a terminal; `varied`: the varied number of each, as in "workers=4"."""
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
