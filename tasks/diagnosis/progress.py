"""How far tasks are: the report of the current attempt, its rate and estimated end, the checkpoint and the log."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from tasks.framework.context import MOST_LINES
from tasks.models import AttemptLog, Progress, Task, TaskStatus
from tasks.support.durations import spoken
from tasks.support.redaction import redact

LEAST_SECONDS = 1.0  # between the first report and the last one, before their rate says something
ROUNDING = 1e-9  # 0.29 are 29 %, though the computer multiplies to a little less


@dataclass(frozen=True)
class Reported:
    """The last report of a task's current attempt.

    `per_minute`: percent, or None if not known yet; `left`: seconds to the estimated end, or None if not known.
    """

    fraction: float
    message: str
    updated_at: datetime
    per_minute: float | None = None
    left: float | None = None

    @classmethod
    def of(cls, row: Progress, now: datetime) -> Self | None:
        """The report in a row; None if it holds only a checkpoint."""
        if row.fraction is None:
            return None
        per_second = rate_of(row)
        left = None
        if per_second:
            # After the estimated end nothing is known any more.
            seconds = (1 - row.fraction) / per_second - (now - row.updated_at).total_seconds()
            left = seconds if seconds > 0 else None
        return cls(row.fraction, row.message, row.updated_at, per_second and per_second * 6000, left)

    @property
    def percent(self) -> int:
        """Rounded down: 100 means that everything is done."""
        return int(self.fraction * 100 + ROUNDING)

    @property
    def words(self) -> str:
        """For example `45 %, 12 %/min, about 5 min left`."""
        words = [f"{self.percent} %"]
        if self.per_minute:
            digits = 0 if self.per_minute >= 10 else 1 if self.per_minute >= 1 else 2
            words.append(_("%(number)s %%/min") % {"number": number_format(round(self.per_minute, digits), digits)})
        if self.left is not None:
            words.append(_("about %(time)s left") % {"time": spoken(max(self.left, 1.0))})
        return ", ".join(words)


def rate_of(row: Progress) -> float | None:
    """The part of the whole done in a second since the attempt's first report; None if that is not known yet."""
    if row.fraction is None or row.first_fraction is None or row.first_at is None:
        return None
    seconds, gained = (row.updated_at - row.first_at).total_seconds(), row.fraction - row.first_fraction
    return gained / seconds if gained > 0 and seconds >= LEAST_SECONDS else None


def current(task: Task, row: Progress) -> Progress:
    """The row without the report of an earlier attempt, of which only the checkpoint still counts."""
    # An attempt that was given back has the same number as the one after it.
    if row.attempt != task.attempt or (task.started_at and row.updated_at < task.started_at):
        row.fraction, row.message = None, ""
    return row


def progress_of(task: Task) -> Progress | None:
    """Read the report of the task's current attempt and the last checkpoint; None without either."""
    row = Progress.objects.filter(pk=task.pk).first()
    return row and current(task, row)


def reports(tasks: Iterable[Task], now: datetime) -> dict[int, Reported]:
    """The last reports of those tasks that are PROCESSING, by id; one statement, or none."""
    running = {task.pk: task for task in tasks if task.status == TaskStatus.PROCESSING}
    rows = Progress.objects.filter(pk__in=running).defer("state") if running else ()
    found = {row.pk: Reported.of(current(running[row.pk], row), now) for row in rows}
    return {task_id: report for task_id, report in found.items() if report}


def checkpoint_of(task: Task, row: Progress | None) -> Any:
    """The redacted state with which the next attempt begins; None without one, and once the task is completed."""
    return redact(row.state) if row and task.status != TaskStatus.COMPLETED else None


def latest_lines(task_id: int, after: int = 0) -> list[AttemptLog]:
    """The latest lines that the task's attempts have logged behind the line `after`, the newest at the end."""
    # By time, as no index of all tasks' lines has that order and tempts the planner to read it backwards.
    lines = AttemptLog.objects.filter(task_id=task_id, pk__gt=after).order_by("-at", "-id")
    return list(lines[:MOST_LINES])[::-1]
