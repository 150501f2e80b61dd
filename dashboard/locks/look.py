"""One snapshot of the locks: the tree, the held rows, the work behind each session, and missing grants.

It needs no connection pool of its own. However many tabs ask, each process queries once a second,
in at most one session, with timeouts (dashboard/live/snapshot.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import connection
from django.utils.functional import cached_property

from dashboard.locks import activity, attribution
from dashboard.locks.activity import Activity
from dashboard.locks.attribution import Behind, HeldRow, behind, running_lab_runs, running_tasks
from dashboard.locks.tree import Line, lines
from tasks.panels import Look
from tasks.support.database import fetch

GRANTS = """
SELECT current_user AS role, pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
    pg_has_role('pg_signal_backend', 'USAGE') AS may_signal
"""


@dataclass(frozen=True)
class Grants:
    """The rights of the dashboard's own database role."""

    role: str
    sees_all: bool
    may_signal: bool


@dataclass(frozen=True)
class LockLook:
    """Everything that the lock page shows, at one moment."""

    seen: Activity
    held: tuple[HeldRow, ...]
    behind: Mapping[int, Behind]
    grants: Grants

    @cached_property
    def lines(self) -> list[Line]:
        return lines(self.seen.roots)

    @property
    def longest_wait(self) -> float | None:
        """The longest current wait, in seconds."""
        return max((lock.wait_seconds for lock in self.seen.locks if lock.wait_seconds is not None), default=None)

    @cached_property
    def not_shown(self) -> int:
        """The number of sessions in the tree beyond the last line shown."""
        return sum(1 + root.victims for root in self.seen.roots) - len(self.lines)

    @cached_property
    def bystanders(self) -> set[int]:
        """Pids of sessions outside the tree."""
        return {session.pid for session in self.seen.sessions} - {line.node.session.pid for line in self.lines}


def of(shared: Look) -> LockLook:
    """The locks of a shared snapshot; runs only the queries that the snapshot has not run."""
    seen, held = shared.once(activity.look), shared.once(attribution.look)
    is_lab_at_work = any("lab" in session.identity.kinds for session in seen.sessions)
    lab_runs = shared.once(running_lab_runs) if is_lab_at_work else {}
    return LockLook(seen, tuple(held), behind(seen, held, shared.once(running_tasks), lab_runs), shared.once(grants))


def fresh() -> LockLook:
    return of(Look())


def grants() -> Grants:
    [row] = fetch(connection, GRANTS)
    return Grants(**row)
