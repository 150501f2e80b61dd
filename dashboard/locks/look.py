"""One look at the locks: the tree, the held rows, what stands behind each session, and missing grants.

Not on a pool of connections of its own: however many tabs ask, a process asks each of these once a second
(dashboard/shared_look.py), so they occupy at most one session of each web process, under limits of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import connection
from django.utils.functional import cached_property

from dashboard.locks import activity, held_rows
from dashboard.locks.activity import Activity
from dashboard.locks.behind import Behind, behind, running_lab_runs, running_tasks
from dashboard.locks.held_rows import HeldRow
from dashboard.locks.tree import Line, lines
from tasks.database import fetch
from tasks.panels import Look

GRANTS = """
SELECT current_user AS role, pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
    pg_has_role('pg_signal_backend', 'USAGE') AS may_signal
"""


@dataclass(frozen=True)
class Grants:
    """What the dashboard's own database role may do."""

    role: str
    sees_all: bool
    may_signal: bool


@dataclass(frozen=True)
class LockLook:
    """Everything that the lock page shows, as of one moment."""

    seen: Activity
    held: tuple[HeldRow, ...]
    behind: Mapping[int, Behind]
    grants: Grants

    @cached_property
    def lines(self) -> list[Line]:
        return lines(self.seen.roots)

    @property
    def longest_wait(self) -> float | None:
        """The age of the oldest wait, seconds."""
        return max((lock.wait_seconds for lock in self.seen.locks if lock.wait_seconds is not None), default=None)

    @cached_property
    def not_shown(self) -> int:
        """How many sessions of the tree stand beyond its last line."""
        return sum(1 + root.victims for root in self.seen.roots) - len(self.lines)

    @cached_property
    def bystanders(self) -> set[int]:
        """The sessions that stand outside the tree."""
        return {session.pid for session in self.seen.sessions} - {line.node.session.pid for line in self.lines}


def of(shared: Look) -> LockLook:
    """What that look knows of the locks; asks what nobody has asked it yet."""
    seen, held = shared.once(activity.look), shared.once(held_rows.look)
    is_lab_at_work = any("lab" in session.identity.kinds for session in seen.sessions)
    lab_runs = shared.once(running_lab_runs) if is_lab_at_work else {}
    return LockLook(seen, tuple(held), behind(seen, held, shared.once(running_tasks), lab_runs), shared.once(grants))


def fresh() -> LockLook:
    """A look of this very moment."""
    return of(Look())


def grants() -> Grants:
    """What this role may do, as it is now."""
    [row] = fetch(connection, GRANTS)
    return Grants(**row)
