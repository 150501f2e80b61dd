"""Look up who blocked whom in the past, from the sampler's rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from dashboard.locks.activity import limited
from dashboard.locks.sessions import OUTSIDER, Lock, Session
from dashboard.locks.tree import Line, build_tree, lines
from dashboard.models import LockWait
from tasks.operations.prune import History
from tasks.support.database import fetch

PAGE = 50
TREE_CAP = 500
SAMPLE_SECONDS = 3.0  # a wait counts as going on for this long after its last sample

WAITS = """
SELECT * FROM dashboard_lockwait
WHERE tstzrange(waiting_since, last_seen, '[]') && tstzrange(%(since)s::timestamptz, %(until)s::timestamptz, '[]')
  AND (%(before)s::bigint IS NULL OR id < %(before)s::bigint)
ORDER BY id DESC LIMIT %(limit)s::int
"""

DEADLOCKS = """
SELECT coalesce(sum(number), 0)::bigint AS number FROM dashboard_deadlocks
WHERE at BETWEEN %(since)s::timestamptz AND %(until)s::timestamptz
"""

LATEST = (
    "SELECT max(last_seen) AS at FROM (SELECT last_seen FROM dashboard_lockwait ORDER BY id DESC LIMIT 50) AS waits"
)

PRUNE_WAITS = """
WITH page AS MATERIALIZED (
    SELECT id, last_seen FROM dashboard_lockwait WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), doomed AS MATERIALIZED (
    SELECT wait.id FROM page JOIN dashboard_lockwait AS wait ON wait.id = page.id
    WHERE page.last_seen < statement_timestamp() - %(age)s::interval FOR UPDATE OF wait SKIP LOCKED
), deleted AS (
    DELETE FROM dashboard_lockwait USING doomed WHERE dashboard_lockwait.id = doomed.id RETURNING dashboard_lockwait.id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM deleted) AS deleted,
    (SELECT min(last_seen) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

# The latest row stays, because the next count starts from its total.
PRUNE_DEADLOCKS = """
WITH doomed AS MATERIALIZED (
    SELECT id FROM dashboard_deadlocks
    WHERE at < statement_timestamp() - %(age)s::interval AND id < (SELECT max(id) FROM dashboard_deadlocks)
    ORDER BY id LIMIT %(window)s::int FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM dashboard_deadlocks USING doomed WHERE dashboard_deadlocks.id = doomed.id
    RETURNING dashboard_deadlocks.id
)
SELECT 0 AS last_id, count(*) AS deleted, count(*) = %(window)s::int AS is_old FROM deleted
"""

HISTORY = (
    History("lock_waits", "dashboard_lockwait", PRUNE_WAITS),
    History("deadlocks", "dashboard_deadlocks", PRUNE_DEADLOCKS),
)


@dataclass(frozen=True)
class Past:
    """Locks around one moment. `before`: key of the next, older page, or None."""

    tree: list[Line]
    waits: list[LockWait]
    deadlocks: int
    before: int | None
    latest: datetime | None


def look_back(at: datetime, around: timedelta, *, before: int | None = None) -> Past:
    """The tree at `at`, and the waits and deadlocks within `around` before and after it.

    `before` continues the list of waits below this id. Four statements, each with an index and a limit.
    """
    window = {"since": at - around, "until": at + around}
    moment = {"since": at - timedelta(seconds=SAMPLE_SECONDS), "until": at, "before": None, "limit": TREE_CAP}
    with limited(connection):
        page = list(LockWait.objects.raw(WAITS, {**window, "before": before, "limit": PAGE + 1}))
        return Past(
            tree=tree_at(at, LockWait.objects.raw(WAITS, moment)),
            waits=page[:PAGE],
            deadlocks=fetch(connection, DEADLOCKS, window)[0]["number"],
            before=page[PAGE - 1].pk if len(page) > PAGE else None,
            latest=fetch(connection, LATEST)[0]["at"],
        )


def tree_at(at: datetime, standing: Iterable[LockWait]) -> list[Line]:
    """Rebuild the tree of that time from the waits that were going on."""
    waits = {wait.blocked_pid: wait for wait in sorted(standing, key=lambda wait: wait.pk)}
    sessions: dict[int, Session] = {}
    for wait in waits.values():
        sessions.setdefault(wait.blocker_pid, blocker_of(wait, at))
    for pid, wait in waits.items():
        sessions[pid] = blocked_of(wait)
    locks = [
        Lock(
            wait.blocked_pid,
            wait.locktype,
            wait.mode,
            False,
            None,
            wait.target,
            (at - wait.waiting_since).total_seconds(),
        )
        for wait in waits.values()
    ]
    return lines(build_tree(sessions.values(), locks))


def blocker_of(wait: LockWait, at: datetime) -> Session:
    age = (at - wait.blocker_since).total_seconds() if wait.blocker_since else None
    is_outsider = wait.blocker_pid <= 0
    return Session(
        pid=wait.blocker_pid,
        application_name=wait.blocker_who,
        role=None,
        client=None,
        backend_start=None,
        xact_start=wait.blocker_since,
        state=wait.blocker_state,
        wait_event_type=None,
        wait_event=None,
        query=wait.blocker_query,
        transaction_seconds=age,
        state_seconds=None,
        blocked_by=(),
        backend_type=OUTSIDER if is_outsider else None,
        label=wait.blocker_who if is_outsider else "",
    )


def blocked_of(wait: LockWait) -> Session:
    return Session(
        pid=wait.blocked_pid,
        application_name=wait.blocked_who,
        role=None,
        client=None,
        backend_start=None,
        xact_start=None,
        state="active",
        wait_event_type="Lock",
        wait_event=None,
        query=wait.blocked_query,
        transaction_seconds=None,
        state_seconds=None,
        blocked_by=(wait.blocker_pid,),
    )
