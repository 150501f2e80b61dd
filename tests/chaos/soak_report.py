"""The findings of a soak: docs/measurements/soak.json, and from it alone a section of docs/reliability.md."""

import json
import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import django

from tasks.queue import throughput
from tests.chaos.probe import MEBIBYTE, Sample

SECTION = re.compile(r"(?<=<!-- soak: begin -->\n).*?(?=<!-- soak: end -->)", re.DOTALL)
PHASES = {
    "before": "before",
    "held": "while the transaction is open",
    "after": "after it has ended",
}
TASK_TABLE = "tasks_task"
KEYED_SHARE = 5  # one task in so many has an ordering key, if nothing else is asked for
POINTS = 6  # of the curve
WARM_UP, LAST = 0.1, 0.8  # shares of the run: what is flat is the same between the first tenth and the last fifth
Figures = dict[str, Any]


def keep(
    folder: Path,
    versions: dict[str, str],
    samples: Sequence[Sample],
    pages: dict[str, list[float]],
    keyed_share: int = KEYED_SHARE,
) -> None:
    """Write both files; `pages` are the seconds of each answer of the web server by page."""
    found = {**figures(versions, samples, pages), "keyed_share": keyed_share}
    text = json.dumps(found, indent=1) + "\n"
    kept = folder / "measurements" / "soak.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(text)
    page = folder / "reliability.md"
    if page.exists():
        page.write_text(SECTION.sub(lambda _: render(json.loads(text)), page.read_text()))


def surroundings(postgresql: str) -> dict[str, str]:
    return {"PostgreSQL": postgresql, "Python": platform.python_version(), "Django": django.get_version()}


def figures(versions: dict[str, str], samples: Sequence[Sample], pages: dict[str, list[float]]) -> Figures:
    """All that is told, as plain values; every fourth sample is kept."""
    return {
        "versions": versions,
        "machine": {"cores": os.cpu_count(), "load_average": round(os.getloadavg()[2], 1)},
        "seconds": samples[-1].seconds,
        "enqueued": samples[-1].enqueued,
        "ended": samples[-1].done,
        "phases": {name: of_phase(name, samples) for name in PHASES},
        "recovery": recovery(samples),
        "flat": flat(samples),
        "pages": {
            name: {"n": len(times), "p50_ms": ms(times, 0.5), "p99_ms": ms(times, 0.99)}
            for name, times in pages.items()
        },
        "samples": [asdict(sample) for sample in samples[::4]],
    }


def of_phase(name: str, samples: Sequence[Sample]) -> Figures:
    """Rates and waits of one phase, and the tables at its end."""
    mine = [sample for sample in samples if sample.phase == name]
    first, last = mine[0], mine[-1]
    longest = 1000 * max(sample.oldest_seconds for sample in mine)  # the buckets tell no more of waits of minutes
    waits = [late - early for early, late in zip(first.waits or [0] * throughput.BUCKETS, last.waits, strict=True)]
    table = last.tables[TASK_TABLE]
    return {
        "seconds": round(last.seconds - first.seconds, 1),
        "enqueued_per_second": per_second(last.enqueued - first.enqueued, last, first),
        "ended_per_second": per_second(last.done - first.done, last, first),
        "pickup_p50_ms": pickup_ms(waits, 0.5, longest),
        "pickup_p99_ms": pickup_ms(waits, 0.99, longest),
        "longest_waiting_ms": round(longest, 1),
        "most_waiting": max(sample.waiting for sample in mine),
        "dead_rows": table.dead,
        "most_dead_rows": max(sample.tables[TASK_TABLE].dead for sample in mine),
        "table_mb": round(table.heap_bytes / MEBIBYTE, 1),
        "indexes_mb": round(table.index_bytes / MEBIBYTE, 1),
        "vacuums": table.vacuums - first.tables[TASK_TABLE].vacuums,
    }


def pickup_ms(waits: list[int], share: float, longest: float) -> float:
    found = 1000 * (throughput.percentile(waits, share) or 0)
    return round(min(found, longest) if found > 1000 * throughput.BOUNDS_SECONDS[-3] else found, 1)


def per_second(number: int, last: Sample, first: Sample) -> float:
    return round(number / max(0.001, last.seconds - first.seconds), 1)


def recovery(samples: Sequence[Sample]) -> Figures:
    """How long after the end of the transaction there were no more dead rows than before it."""
    before = max(sample.tables[TASK_TABLE].dead for sample in samples if sample.phase == "before")
    after = [sample for sample in samples if sample.phase in ("after", "drained")]
    clean = next((sample for sample in after if sample.tables[TASK_TABLE].dead <= before), None)
    return {
        "most_dead_rows_before": before,
        "seconds": None if clean is None else round(clean.seconds - after[0].seconds, 1),
    }


def flat(samples: Sequence[Sample]) -> Figures:
    """Each figure that must not grow: its median between warm-up and the first third, and in the last fifth."""
    whole = samples[-1].seconds
    early = [sample for sample in samples if WARM_UP * whole <= sample.seconds < whole / 3] or samples[:1]
    late = [sample for sample in samples if sample.seconds >= LAST * whole and sample.phase != "drained"]
    late = late or samples[-1:]  # on a busy machine a soak of seconds has few samples
    names = sorted(early[-1].memory)
    found: Figures = {
        f"{name}, MiB": [
            round(median(part, lambda s, n=name: s.memory.get(n, 0)) / MEBIBYTE, 1) for part in (early, late)
        ]
        for name in names
    }
    found["open files"] = [median(part, lambda sample: sample.files) for part in (early, late)]
    found["sessions"] = [median(part, lambda sample: sum(sample.sessions.values())) for part in (early, late)]
    found["locks of idle sessions"] = [
        median(part, lambda sample: sum(sample.left_over.values())) for part in (early, late)
    ]
    found["processes that were replaced"] = [0, len(set(early[0].pids) - set(late[-1].pids))]
    return found


def median(samples: Sequence[Sample], figure: Any) -> float:
    return round(statistics.median(figure(sample) for sample in samples), 1)


def ms(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1)


# The section.


def render(found: Figures) -> str:
    """The section's text from the values of docs/measurements/soak.json."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    rate = found["phases"]["before"]["enqueued_per_second"]
    share = found["keyed_share"]
    keys = f"one in {share} with an ordering key" if share else "none with an ordering key"
    lines = [
        f"{found['seconds'] / 60:.0f} minutes, {found['enqueued']:,} tasks enqueued ({rate:,.0f} a second, {keys}), "
        f"{found['ended']:,} attempts ended; {versions}; {found['machine']['cores']} cores, shared with other work "
        f"(load average {found['machine']['load_average']}).",
        "",
        *curve(found["samples"]),
        "",
        recovered(found["recovery"]),
        "",
        grown(found["flat"]),
        "",
    ]
    return "\n".join(lines)


def curve(samples: Sequence[Figures]) -> list[str]:
    """The table of what happened over time, in some steps; each line tells of the time since the one before."""
    step = max(1, len(samples) // POINTS)
    points = [*samples[:-1:step], samples[-1]]
    columns = ["minute", "transaction", "ended a second", "pickup p50, ms", "pickup p99, ms", "waiting", "dead rows"]
    lines = [row(*columns, "table, MiB", "indexes, MiB"), "|--:|---" + "|--:" * 7 + "|"]
    for first, last in pairwise(points):
        longest = 1000 * max(
            sample["oldest_seconds"] for sample in samples if first["seconds"] < sample["seconds"] <= last["seconds"]
        )
        before = first["waits"] or [0] * throughput.BUCKETS
        waits = [late - early for early, late in zip(before, last["waits"] or before, strict=True)]
        rate = (last["done"] - first["done"]) / max(0.001, last["seconds"] - first["seconds"])
        table = last["tables"][TASK_TABLE]
        figures = (
            rate,
            pickup_ms(waits, 0.5, longest),
            pickup_ms(waits, 0.99, longest),
            last["waiting"],
            table["dead"],
        )
        sizes = (table["heap_bytes"] / MEBIBYTE, table["index_bytes"] / MEBIBYTE)
        state = "open" if last["phase"] == "held" else ""
        lines.append(row(f"{last['seconds'] / 60:.0f}", state, *(f"{figure:,.0f}" for figure in (*figures, *sizes))))
    return lines


def grown(flat: Mapping[str, Sequence[float]]) -> str:
    """Tell what has grown of all that must not."""
    more = [f"{name} {shown(early)} to {shown(late)}" for name, (early, late) in flat.items() if late > early]
    return (
        f"Of {len(flat)} figures that must not grow (memory of each process, files, sessions, locks), medians of the "
        f"first third and the last fifth: {', '.join(more) or 'none did'}{'; the others did not' if more else ''}."
    )


def recovered(found: Figures) -> str:
    if found["seconds"] is None:
        return "The dead rows did not become as few again as before while the run lasted."
    before, seconds = found["most_dead_rows_before"], found["seconds"]
    return f"As few dead rows as before ({before:,}) {seconds:.0f} s after the transaction's end."


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def shown(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"
