"""The figures of the long drills: kept as JSON, and from it alone a section of docs/reliability.md."""

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import django

from tests.chaos.account import Summary
from tests.chaos.runs import FREEZES, KILLS, STORMS
from tests.databases import ROOT, QueueDatabase

JSON_FILE = ROOT / "docs" / "measurements" / "reliability.json"
PAGE = ROOT / "docs" / "reliability.md"
SECTION = re.compile(r"(?<=<!-- chaos: begin -->\n).*?(?=<!-- chaos: end -->)", re.DOTALL)
COURSES = {
    "calm": "nothing",
    "kills": "SIGKILL of a process, a group, a supervisor, or all",
    "freezes": "the same, and SIGSTOP past the lease",
    "storms": "SIGKILL while the database restarts, crashes, ends all sessions, is locked or read-only",
}
DRILLS = {"calm": 1, "kills": len(KILLS), "freezes": len(FREEZES), "storms": len(STORMS)}
OWN_LOAD = 2  # of a drill itself, for each core
COLUMNS = (
    "what befell them",
    "tasks",
    "kills",
    "freezes",
    "outages",
    "recovery p50 / p99 / max",
    "repeated, excused",
    "repeated, written late",
    "late writes refused",
)


@dataclass
class Report:
    """The summaries of this session's long drills by course, and what they ran on.

    Courses of which only some drills were run stay as they were.
    """

    courses: dict[str, list[Summary]] = field(default_factory=dict)
    postgresql: str = ""

    def note(self, course: str, database: QueueDatabase, summary: Summary) -> None:
        self.postgresql = database.value("SHOW server_version")
        self.courses.setdefault(course, []).append(summary)

    def whole(self) -> dict[str, list[Summary]]:
        """The courses of which every drill was run."""
        return {name: runs for name, runs in self.courses.items() if len(runs) == DRILLS[name]}

    def write(self) -> None:
        text = json.dumps(self.figures(json.loads(JSON_FILE.read_text())), indent=1) + "\n"
        JSON_FILE.write_text(text)
        PAGE.write_text(replaced(PAGE.read_text(), render(json.loads(text))))

    def figures(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Put this session's courses in the places of those that were kept."""
        versions = {
            "PostgreSQL": self.postgresql,
            "Python": platform.python_version(),
            "Django": django.get_version(),
        }
        when = {"date": datetime.now(UTC).date().isoformat(), "load_average": round(os.getloadavg()[2], 1)}
        new = {name: {"what": COURSES[name], **when, **added_up(runs)} for name, runs in self.whole().items()}
        return {"versions": versions, "cores": os.cpu_count(), "courses": {**kept["courses"], **new}}


def added_up(runs: list[Summary]) -> dict[str, Any]:
    """All runs of one course in one: numbers added, lists counted; the percentiles are over all recoveries."""
    strikes: Counter[str] = sum((Counter(run.strikes) for run in runs), Counter())
    outside: Counter[str] = Counter()
    for run in runs:
        outside.update(run.outside)
    frozen = sum(number for victim, number in strikes.items() if victim.startswith("frozen"))
    recoveries = sorted(ms for run in runs for ms in run.recovery_ms)
    return {
        "seeds": [run.seed for run in runs],
        "seconds": round(sum(run.seconds for run in runs), 1),
        "tasks": sum(run.tasks for run in runs),
        "workers": sum(run.workers for run in runs),
        "kills": strikes.total() - frozen,
        "freezes": frozen,
        "strikes": dict(sorted(strikes.items())),
        "outages": sum(run.outages for run in runs),
        "recoveries": len(recoveries),
        "recovery_ms": {name: percentile(recoveries, share) for name, share in SHARES.items()},
        "permitted": sum(run.permitted for run in runs),
        "oldest_repeat_ms": max(run.oldest_repeat_ms for run in runs),
        "late": sum(len(run.late) for run in runs),
        "forbidden": sum(len(run.forbidden) for run in runs),
        "lost": sum(len(run.lost) for run in runs),
        "falsely_recovered": sum(len(run.falsely_recovered) for run in runs),
        "refused": sum(run.refused for run in runs),
        "out_of_order": sum(len(run.out_of_order) for run in runs),
        "outside": dict(outside),
    }


SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def percentile(values: list[float], share: float) -> float | None:
    """Of sorted values, the nearest rank; None when there are none."""
    if not values:
        return None
    return values[min(len(values) - 1, max(0, -int(-share * len(values) // 1) - 1))]


def bound(found: int, number: int) -> str:
    """What so many findings in so many cases allow to say, at 95 %: the rule of three, for none."""
    if found:
        return f"{found} of {number:,}"
    return f"0 of {number:,}: below {3 / number:.3%} (3/N) with 95 % confidence"


def render(figures: dict[str, Any]) -> str:
    """The section as Markdown; from the JSON alone, so that the two cannot differ."""
    courses = figures["courses"]
    return "\n".join(
        [
            _where(figures),
            "",
            _row(COLUMNS),
            "|---" * len(COLUMNS) + "|",
            *(_row(_cells(course)) for course in courses.values()),
            "",
            _bounds(courses.values()),
            "",
            _outside(courses.values()),
            "",
        ]
    )


def _where(figures: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    courses = figures["courses"].values()
    seconds, dates = sum(course["seconds"] for course in courses), sorted({course["date"] for course in courses})
    loads = sorted(course["load_average"] for course in courses)
    seeds = ", ".join(f"{name} {' '.join(map(str, course['seeds']))}" for name, course in figures["courses"].items())
    load = " to ".join(dict.fromkeys(map(str, (loads[0], loads[-1]))))
    busy = " that other work kept busy" if loads[-1] > OWN_LOAD * figures["cores"] else ""
    return (
        f"{' and '.join(dates)}; {versions}; {figures['cores']} cores{busy} (load average {load}); "
        f"{seconds:.0f} s of work. Seeds: {seeds}."
    )


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _cells(course: dict[str, Any]) -> list[object]:
    return [
        course["what"],
        f"{course['tasks']:,}",
        course["kills"],
        course["freezes"],
        course["outages"],
        _recovery(course["recovery_ms"]),
        course["permitted"],
        course["late"],
        course["refused"],
    ]


def _recovery(milliseconds: dict[str, float | None]) -> str:
    if milliseconds["max"] is None:
        return "none"
    return " / ".join(f"{value / 1000:.2f}" for value in milliseconds.values()) + " s"


def _bounds(courses: Any) -> str:
    """What so few or no findings allow to say. Strikes, not tasks, are independent, so they give the bound."""
    strikes = sum(sum(course["strikes"].values()) for course in courses)
    workers = sum(course["workers"] for course in courses)
    names = ("lost", "forbidden", "falsely_recovered", "out_of_order")
    total = {name: sum(course[name] for course in courses) for name in names}
    return (
        f"- tasks lost, by strikes: {bound(total['lost'], strikes)}\n"
        f"- tasks repeated without an excuse, by strikes: {bound(total['forbidden'], strikes)}\n"
        f"- living workers declared dead: {bound(total['falsely_recovered'], workers)}\n"
        f"- ordering keys out of order: {total['out_of_order']}"
    )


def _outside(courses: Any) -> str:
    total: Counter[str] = Counter()
    for course in courses:
        total.update(course["outside"])
    found = "; ".join(f"{name} {number:,}" for name, number in total.items() if number)
    return f"The other judges: {found}; 0: {', '.join(name for name, number in total.items() if not number)}."


def replaced(page: str, section: str) -> str:
    """The page with this section between its marks; fails when there are none."""
    page, number = SECTION.subn(lambda _: section, page)
    assert number == 1, "the page has lost its marks"
    return page


def section_of(page: Path) -> str:
    found = SECTION.search(page.read_text())
    assert found, "the page has lost its marks"
    return found[0]
