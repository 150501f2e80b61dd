"""The time line of schedules and of commands under `run_locked`: the last day, what is late, and the day to come.

All of it is bounded: the newest ticks and runs, the schedules that are due next, and a number of times that are
computed. Where a bound cuts something off, the chart says from when or until when it is whole.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from dashboard.charts import HIGH, WIDE, Bar, Chart, Curve, clock_time, count_scale, round_up, share
from dashboard.numbers import decimal
from tasks.exceptions import InvalidSchedule
from tasks.models import Schedule
from tasks.operations import schedules
from tasks.schedule import expectations
from tasks.schedule.ticks import GRACE
from tasks.support import reading
from tasks.support.database import fetch
from tasks.support.recurrence import Recurrence

SLOT = timedelta(minutes=30)
SIDE = 48  # slots before and after that of now
MOST_TICKS, MOST_RUNS, MOST_SCHEDULES, MOST_TIMES = 5000, 1000, 200, 1000
NAMED = 4  # schedules that a slot names of a kind

TICKS = """
WITH newest AS MATERIALIZED (
    SELECT schedule_name, at, outcome, task_id, made_at FROM tasks_tick ORDER BY id DESC LIMIT %(most)s::int
)
SELECT floor(extract(epoch FROM newest.at - %(since)s::timestamptz) / %(slot)s::float8)::int AS slot,
    CASE WHEN newest.outcome IN ('skipped', 'missed') THEN newest.outcome
        WHEN task.status = 'FAILED' THEN 'failed' ELSE 'ran' END AS kind,
    count(*) AS number, (array_agg(DISTINCT newest.schedule_name))[1:5] AS names,
    (SELECT CASE WHEN count(*) = %(most)s::int THEN min(made_at) END FROM newest) AS whole_since
FROM newest LEFT JOIN tasks_task AS task ON task.id = newest.task_id
WHERE newest.at >= %(since)s::timestamptz
GROUP BY 1, 2
"""
RUNS = """
WITH newest AS MATERIALIZED (
    SELECT name, started_at, outcome FROM tasks_commandrun ORDER BY id DESC LIMIT %(most)s::int
)
SELECT floor(extract(epoch FROM started_at - %(since)s::timestamptz) / %(slot)s::float8)::int AS slot,
    CASE WHEN outcome IN ('succeeded', 'running') THEN 'ran' WHEN outcome = 'skipped' THEN 'skipped'
        ELSE 'failed' END AS kind,
    count(*) AS number, (array_agg(DISTINCT name))[1:5] AS names,
    (SELECT CASE WHEN count(*) = %(most)s::int THEN min(started_at) END FROM newest) AS whole_since
FROM newest
WHERE started_at >= %(since)s::timestamptz
GROUP BY 1, 2
"""
KINDS: dict[str, Promise] = {
    "ran": gettext_lazy("ran"),
    "failed": gettext_lazy("failed"),
    "skipped": gettext_lazy("skipped"),
    "missed": gettext_lazy("missed"),
    "late": gettext_lazy("late"),
    "coming": gettext_lazy("coming"),
}
TROUBLE = ("failed", "skipped", "missed", "late")


class Entry(NamedTuple):
    """Some of one kind in a slot, for the table."""

    at: str
    kind: str
    number: str
    names: str


@dataclass
class Slot:
    """Half an hour: how many of each kind, and some of their names."""

    at: datetime
    numbers: dict[str, int] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, number: int, names: Iterable[str]) -> None:
        self.numbers[kind] = self.numbers.get(kind, 0) + number
        known = self.names.setdefault(kind, [])
        known += [name for name in names if name not in known][: NAMED + 1 - len(known)]

    def named(self, kind: str) -> str:
        names = [reading.one_line(name) for name in self.names[kind]]
        return ", ".join([*names[:NAMED], "…"] if len(names) > NAMED else names)

    def entries(self) -> list[Entry]:
        return [
            Entry(clock_time(self.at, "%m-%d %H:%M"), str(label), decimal(self.numbers[kind]), self.named(kind))
            for kind, label in KINDS.items()
            if kind in self.numbers
        ]

    def __str__(self) -> str:
        words = "; ".join(f"{entry.number} {entry.kind}: {entry.names}" for entry in self.entries())
        return f"{clock_time(self.at, '%H:%M')} UTC · {words or _('nothing')}"


@dataclass
class Line:
    """The slots, the number that is late now, and the time within which every kind is counted."""

    now: datetime
    slots: list[Slot]
    late: int = 0
    whole_since: datetime | None = None
    whole_until: datetime | None = None

    @classmethod
    def around(cls, now: datetime) -> "Line":
        start = now - timedelta(minutes=now.minute % 30, seconds=now.second, microseconds=now.microsecond) - SIDE * SLOT
        return cls(now, [Slot(start + number * SLOT) for number in range(2 * SIDE + 1)])

    @property
    def since(self) -> datetime:
        return self.slots[0].at

    @property
    def until(self) -> datetime:
        return self.slots[-1].at + SLOT

    def add(self, at: datetime, kind: str, name: str, number: int = 1) -> None:
        place = max(0, (at - self.since) // SLOT)
        if place < len(self.slots):
            self.slots[place].add(kind, number, [name])

    def total(self, *kinds: str) -> int:
        return sum(slot.numbers.get(kind, 0) for slot in self.slots for kind in kinds)


def line() -> Line:
    """Gather the time line: a few statements, however many schedules there are."""
    found = Line.around(schedules.now())
    window = {"since": found.since, "slot": SLOT.total_seconds()}
    for statement, most in ((TICKS, MOST_TICKS), (RUNS, MOST_RUNS)):
        for row in fetch(connection, statement, {**window, "most": most}):
            if row["whole_since"] and row["whole_since"] > max(found.since, found.whole_since or found.since):
                found.whole_since = row["whole_since"]
            if row["slot"] < len(found.slots):
                found.slots[row["slot"]].add(row["kind"], row["number"], row["names"])
    add_commands(found)
    add_schedules(found)
    return found


def add_commands(found: Line) -> None:
    for expected in expectations.expectations():
        at = expected.next_at
        if expected.is_overdue:
            found.late += 1
            found.add(at, "late", expected.name)
        add_interval(found, expected.name, at, expected.every)


def add_schedules(found: Line) -> None:
    on = Schedule.objects.filter(paused=False, ended_at__isnull=True, next_at__lt=found.until)
    rows = list(on.order_by("next_at").defer("args", "kwargs", "declared")[: MOST_SCHEDULES + 1])
    if len(rows) > MOST_SCHEDULES:
        found.whole_until = max(found.now, rows[MOST_SCHEDULES].next_at)  # type: ignore[type-var]
    late = on.filter(next_at__lt=found.now - GRACE)
    found.late += late.count()
    coming: list[tuple[datetime, str, datetime, Recurrence]] = []
    for row in rows[:MOST_SCHEDULES]:
        assert row.next_at is not None
        if schedules.is_late(row, found.now):
            found.add(row.next_at, "late", row.name)
        end = min(row.ends_at or found.until, found.until)
        if row.every_seconds:
            add_interval(found, row.name, row.next_at, timedelta(seconds=row.every_seconds), end)
        else:
            coming.append((row.next_at, row.name, end, row.recurrence))
    for at, name in earliest(coming, found):
        found.add(at, "coming", name)


def add_interval(found: Line, name: str, at: datetime, every: timedelta, end: datetime | None = None) -> None:
    """Count the coming times of an interval, slot by slot: there may be 86,400 of them."""
    end = end or found.until
    for slot in found.slots[SIDE:]:
        low, high = max(slot.at, found.now), min(slot.at + SLOT, end)
        first = max(0, -((at - low) // every))
        number = -((at - high) // every) - first
        if number > 0:
            slot.add("coming", number, [name])


def following_of(recurrence: Recurrence, at: datetime, now: datetime) -> datetime | None:
    """The next time; None if no scheduler can read the settings, as raw SQL may have written them."""
    try:
        return recurrence.following_now(at, now)
    except InvalidSchedule:
        return None


def earliest(coming: list[tuple[datetime, str, datetime, Recurrence]], found: Line) -> Iterator[tuple[datetime, str]]:
    """The coming times of all of these, the earliest first, and at most MOST_TIMES."""
    heapq.heapify(coming)
    for _number in range(MOST_TIMES):
        if not coming:
            return
        at, name, end, recurrence = coming[0]
        if at >= found.now:
            yield at, name
        following = following_of(recurrence, at, found.now)
        if following is None or following >= end:
            heapq.heappop(coming)
        else:
            heapq.heapreplace(coming, (following, name, end, recurrence))
    if coming:
        found.whole_until = min(coming[0][0], found.whole_until or coming[0][0])


def chart_of(found: Line) -> Chart:
    """The line as bars: what ran, on it what went wrong or is late, and on top what comes."""
    most = max(sum(slot.numbers.values()) for slot in found.slots)
    top, width = round_up(most), WIDE // len(found.slots)
    bars = []
    for number, slot in enumerate(found.slots):
        ran = share(slot.numbers.get("ran", 0), top)
        failed = share(sum(slot.numbers.get(kind, 0) for kind in TROUBLE), top)
        coming = share(slot.numbers.get("coming", 0), top)
        heights = (HIGH - ran, HIGH - ran - failed, coming, HIGH - ran - failed - coming)
        bars.append(Bar(number * width, width * 4 // 5, ran, failed, *heights))
    x = int(width * ((found.now - found.since) / SLOT))
    ticks, grid = count_scale(top)
    points = "\n".join(map(str, found.slots))
    now = [Curve("now", _("now"), f"M{x} 0V{HIGH}")]
    return Chart(summary(found), ticks, grid, points, len(found.slots) - 1, bars=bars, curves=now)


def summary(found: Line) -> str:
    trouble = found.total("failed", "skipped", "missed")
    parts = [
        _("Last day: %(ran)s ran") % {"ran": decimal(found.total("ran"))},
        ngettext("%(number)s failed, skipped or missed", "%(number)s failed, skipped or missed", trouble)
        % {"number": decimal(trouble)},
        _("late now: %(number)s") % {"number": decimal(found.late)},
        _("next day: %(number)s") % {"number": decimal(found.total("coming"))},
    ]
    return ", ".join(parts) + "."


def axis_of(found: Line) -> list[str]:
    """The times below the chart: its start, now in the middle, and its end."""
    at = [clock_time(moment, "%m-%d %H:%M") for moment in (found.since, found.until)]
    return [at[0], _("now, %(time)s UTC") % {"time": clock_time(found.now, "%H:%M")}, at[1]]
