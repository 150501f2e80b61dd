"""The measures as Markdown tables for people, and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.benchmarks.pages.cold import PART, Measured
from tests.benchmarks.pages.scene import Sizes
from tests.benchmarks.pages.tabs import Cost, Polled

# What the pages shall keep: seconds in which 95 of 100 answers of a page and of a part come, and the share of one core.
PAGE_GOAL, PART_GOAL, DATABASE_GOAL = 0.100, 0.030, 0.10
HEADING = """\
| page or part | p50 ms | p95 ms | goal ms | in the database ms | processor ms, web + database | statements | kB |
|---|---:|---:|---:|---:|---:|---:|---:|"""


def percentile(seconds: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies; of few values, the nearest."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def line(found: Measured) -> str:
    """One row of the table of pages."""
    goal = PART_GOAL if found.kind == PART else PAGE_GOAL
    name = f"{found.name} (part)" if found.kind == PART else found.name
    name += "" if found.statuses == {200} else f", answered {sorted(found.statuses)}"
    p95 = percentile(found.seconds, 0.95)
    told = f"**{1000 * p95:.0f}**" if p95 > goal else f"{1000 * p95:.0f}"
    database = 1000 * percentile(found.database_seconds, 0.5)
    p50 = 1000 * percentile(found.seconds, 0.5)
    processor = f"{1000 * found.web_cpu:.0f} + {1000 * found.database_cpu:.0f}"
    return (
        f"| {name} | {p50:.0f} | {told} | {1000 * goal:.0f} | {database:.0f} | {processor} | {found.queries} "
        f"| {found.size / 1000:.0f} |"
    )


def scene_told(sizes: Sizes) -> str:
    return (
        f"{sizes.finished:,} finished tasks, {sizes.failed:,} of them failed, {sizes.ready:,} ready, "
        f"{sizes.interventions:,} interventions, {sizes.sessions} sessions of which {sizes.waiting} wait for one row."
    )


def tabs_told(polled: Polled, cost: Cost, number: int) -> str:
    """The table of the tabs, and what they cost."""
    rows = [
        f"| {name} | {len(seconds)} | {1000 * percentile(seconds, 0.5):.0f} | {1000 * percentile(seconds, 0.95):.0f} |"
        for name, seconds in polled.seconds.items()
    ]
    heading = "| part, from outside | requests | p50 ms | p95 ms |\n|---|---:|---:|---:|"
    told = (
        f"{number} tabs, {cost.requests:.0f} requests and {cost.transactions:.0f} transactions a second: the database "
        f"spent {100 * cost.database:.1f} % of one core on them (goal: below {100 * DATABASE_GOAL:.0f} %; sessions "
        f"were active for {1000 * cost.database_active:.0f} ms a second), the web server {100 * cost.web:.0f} %; "
        f"{len(polled.faults)} requests failed."
    )
    return "\n".join([heading, *rows, "", told])


def as_json(sizes: Sizes, pages: Sequence[Measured], scenes: Mapping[str, tuple[Polled, Cost]]) -> dict[str, Any]:
    """Seconds everywhere."""
    return {
        "sizes": asdict(sizes),
        "pages": [
            {
                "name": page.name,
                "kind": page.kind,
                "address": page.address,
                "statuses": sorted(page.statuses),
                "p50": percentile(page.seconds, 0.5),
                "p95": percentile(page.seconds, 0.95),
                "database_p50": percentile(page.database_seconds, 0.5),
                "web_cpu": page.web_cpu,
                "database_cpu": page.database_cpu,
                "statements": page.queries,
                "bytes": page.size,
            }
            for page in pages
        ],
        "tabs": {name: tabs_as_json(*scene) for name, scene in scenes.items()},
    }


def tabs_as_json(polled: Polled, cost: Cost) -> dict[str, Any]:
    """What one scene of tabs saw, and what it cost."""
    parts = polled.seconds.items()
    return {
        "parts": {name: {"p50": percentile(s, 0.5), "p95": percentile(s, 0.95), "n": len(s)} for name, s in parts},
        "faults": polled.faults,
        **asdict(cost),
    }
