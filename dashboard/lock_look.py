"""One look at the locks for everybody: the tree, the held rows, what stands behind each session, and missing grants.

Not on a pool of connections of its own: however many tabs ask, a process computes one look at a time and keeps it for a
second, so these statements occupy at most one session of each web process, and each of them has limits.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from django.conf import settings
from django.db import connection

from dashboard import activity, held_rows
from dashboard.activity import Activity
from dashboard.behind import Behind, behind
from dashboard.held_rows import HeldRow
from dashboard.limits import limited
from dashboard.tree import Line, lines
from tasks.database import fetch

KEPT_SECONDS = 1.0
ROWS_SHOWN = 50

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
    began: float

    @property
    def lines(self) -> list[Line]:
        return lines(self.seen.roots)

    @property
    def longest_wait(self) -> float | None:
        """The age of the oldest wait, seconds."""
        return max((lock.wait_seconds for lock in self.seen.locks if lock.wait_seconds is not None), default=None)

    @property
    def not_shown(self) -> int:
        """How many sessions of the tree stand beyond its last line."""
        return sum(1 + root.victims for root in self.seen.roots) - len(self.lines)

    @property
    def bystanders(self) -> set[int]:
        """The sessions that stand outside the tree."""
        return {session.pid for session in self.seen.sessions} - {line.node.session.pid for line in self.lines}


_guard = threading.Lock()
_latest: LockLook | None = None


def current() -> LockLook:
    """The look of this moment, at most a second old."""
    global _latest
    with _guard:
        kept = getattr(settings, "SHARED_LOOK_SECONDS", KEPT_SECONDS)
        if _latest is None or time.monotonic() - _latest.began >= kept:
            _latest = fresh()
        return _latest


def fresh() -> LockLook:
    """A look of this very moment."""
    began = time.monotonic()
    with limited(connection):
        seen = activity.look()
        held = tuple(held_rows.look())
        [grants] = fetch(connection, GRANTS)
        return LockLook(seen, held, behind(seen, held), Grants(**grants), began)
