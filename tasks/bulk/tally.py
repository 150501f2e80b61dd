"""Count the tasks of a bulk action within a few seconds, never in one long statement."""

import time
from collections import Counter
from dataclasses import dataclass, field, replace

from django.db import OperationalError, connection
from django.db.models import Count, Max
from django.db.transaction import atomic

from tasks.list_filter import BoundedFilter, ListFilter
from tasks.models import Task, TaskStatus

FIRST_WINDOW = 50_000  # ids
WINDOW_GROWTH = 4
SECONDS = 1.5
MOST_READ = 10_000  # rows whose arguments are read, for a text filter
QUERY_CANCELED = "57014"
LIMIT_STATEMENT = "SELECT set_config('statement_timeout', %(milliseconds)s::text, true)"


@dataclass
class Tally:
    """Matching tasks by status. Not `is_complete`: there may be more, below the id `counted_down_to`."""

    by_status: Counter[str] = field(default_factory=Counter)
    is_complete: bool = True
    counted_down_to: int = 0

    @property
    def statuses(self) -> list[tuple[str, int]]:
        """Each status with its number, largest first."""
        return self.by_status.most_common()

    @property
    def number(self) -> int:
        return self.by_status.total()


def highest_id() -> int:
    """The id of the newest task, 0 without one."""
    return Task.objects.aggregate(highest=Max("pk"))["highest"] or 0


def tally(chosen: ListFilter, upto: int, *, seconds: float = SECONDS) -> Tally:
    """Count the tasks that match, from the id `upto` downwards, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    if is_indexed(chosen):
        by_status = _count_each(chosen, upto, deadline - seconds / 2)
        if by_status is not None:
            return Tally(by_status)
    found = Tally(counted_down_to=upto)
    window = FIRST_WINDOW
    while found.counted_down_to > 0:
        below = max(0, found.counted_down_to - window)
        counted = _count(BoundedFilter.within(chosen, found.counted_down_to, below), deadline)
        if counted is None:
            found.is_complete = False
            break
        found.by_status += counted
        found.counted_down_to = below
        window *= WINDOW_GROWTH
    return found


def is_indexed(chosen: ListFilter) -> bool:
    """True if indexes contain every row that can match: one read of them replaces the windows of ids."""
    return bool(chosen.statuses) and TaskStatus.COMPLETED not in chosen.statuses and not chosen.text


def _count_each(chosen: ListFilter, upto: int, deadline: float) -> Counter[str] | None:
    """All matches, each status from its own index; None when the time is over."""
    found: Counter[str] = Counter()
    for status in chosen.statuses:
        counted = _count(BoundedFilter.within(chosen.with_statuses(status), upto), deadline)
        if counted is None:
            return None
        found += counted
    return found


def _count(chosen: BoundedFilter, deadline: float) -> Counter[str] | None:
    """Matches by status; None when the time is over or too many rows would have to be read."""
    milliseconds = int(1000 * (deadline - time.monotonic()))
    if milliseconds <= 0:
        return None
    try:
        with atomic(), connection.cursor() as cursor:
            cursor.execute(LIMIT_STATEMENT, {"milliseconds": str(milliseconds)})
            return _read(chosen) if chosen.text else _counted(chosen)
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != QUERY_CANCELED:
            raise
        return None


def _counted(chosen: BoundedFilter) -> Counter[str]:
    rows = chosen.queryset().order_by().values("status").annotate(number=Count("pk"))
    return Counter({row["status"]: row["number"] for row in rows})


def _read(chosen: BoundedFilter) -> Counter[str] | None:
    """Count row by row, because a count of matches in redacted arguments would reveal them."""
    tasks = list(chosen.queryset()[: MOST_READ + 1])
    if len(tasks) > MOST_READ:
        return None
    return Counter(task.status for task in tasks if chosen.shows(task))


def shown_ids(chosen: ListFilter, ids: list[int]) -> list[int]:
    """The ids that a person can have seen with this filter."""
    if not chosen.text:
        return ids
    tasks = replace(chosen, ids=tuple(ids)).queryset().order_by("id")
    return [task.pk for task in tasks if chosen.shows(task)]
