"""The counts in every page's navigation: cached for a second, and left out if a query times out."""

from typing import NamedTuple

from django.db import OperationalError, connection
from django.http import HttpRequest

from dashboard import shared_look
from dashboard.attention.inbox import is_too_slow
from dashboard.attention.queues import COUNT_CAP, numbers
from dashboard.locks import activity
from tasks import stats
from tasks.database import fetch

BLOCKED = """
SELECT count(*) AS blocked FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock'
"""


class Counts(NamedTuple):
    """Stale tasks, and sessions that wait for a lock."""

    stuck: int = 0
    blocked: int = 0


def counts() -> Counts:
    return Counts(stats.stuck(cap=COUNT_CAP), fetch(connection, BLOCKED)[0]["blocked"])


def of(request: HttpRequest) -> Counts:
    """Take the counts from data that this request already has, else query them; zeros on a timeout."""
    look = shared_look.of(request)
    if look.knows(numbers) and look.knows(activity.look):
        return Counts(sum(queue.stale for queue in look.once(numbers).queues), len(look.once(activity.look).blocked))
    try:
        return look.once(counts)
    except OperationalError as error:
        if not is_too_slow(error):
            raise
        return Counts()
