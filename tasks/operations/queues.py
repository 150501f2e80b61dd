"""Settings of a queue: pause, and recovery from dead workers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from django.db import connection
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from tasks.diagnosis.finding import command
from tasks.models import Queue
from tasks.operations.verb import short_waits
from tasks.queue import wakeup
from tasks.support import audit, reading
from tasks.support.audit import Change, Who

PAUSE = """
INSERT INTO tasks_queue (name, paused, paused_at, paused_by)
VALUES (%(name)s::text, true, statement_timestamp(), %(actor)s::text)
ON CONFLICT (name) DO UPDATE SET paused = true, paused_at = excluded.paused_at, paused_by = excluded.paused_by
WHERE NOT tasks_queue.paused
"""

RESUME = """
UPDATE tasks_queue SET paused = false, paused_at = NULL, paused_by = '' WHERE name = %(name)s::text AND paused
"""

# A queue without a row recovers automatically, so `automatic` needs no new row.
CONFIGURE = """
INSERT INTO tasks_queue (name, recovery)
SELECT %(name)s::text, %(recovery)s::text
WHERE %(recovery)s::text <> 'automatic' OR EXISTS (SELECT FROM tasks_queue WHERE name = %(name)s::text)
ON CONFLICT (name) DO UPDATE SET recovery = excluded.recovery WHERE tasks_queue.recovery <> excluded.recovery
"""


def pause(name: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Stop claims from the queue; running tasks continue. True if it was not paused."""
    return _change(name, who, "pause", PAUSE, {"actor": who.actor}, reason, dry_run)


def resume(name: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Allow claims from the queue again; True if it was paused."""
    return _change(name, who, "resume", RESUME, {}, reason, dry_run)


def configure_queue(name: str, who: Who, *, recovery: Queue.Recovery, reason: str = "", dry_run: bool = False) -> bool:
    """Let stale tasks of the queue be recovered automatically, or wait for a person; True if that is a change."""
    params = {"recovery": recovery.value}
    return _change(name, who, f"configure recovery={recovery.value}", CONFIGURE, params, reason, dry_run)


def _change(
    name: str, who: Who, action: str, statement: str, params: Mapping[str, str], reason: str, dry_run: bool
) -> bool:
    """Run one statement on one queue's row; if it changed anything, audit it and wake the workers."""
    with short_waits(rollback=dry_run), connection.cursor() as cursor:
        cursor.execute(statement, {"name": reading.name(name), **params})
        changed = bool(cursor.rowcount)
        if changed:
            audit.record(connection, who, action, [Change(audit.queue(name))], reason)
            wakeup.announce(connection)
    return changed


@dataclass(frozen=True)
class Switch:
    """One button of a queue: its label, its right, its effect (True if it changed something), and its command."""

    name: str
    label: str | Promise
    right: str
    change: Callable[..., bool]
    words: tuple[str, ...]

    def command(self, queue_name: str) -> str:
        return command(self.words[0], queue_name, *self.words[1:])


def _recovery(label: str | Promise, recovery: Queue.Recovery) -> Switch:
    words = ("configure_queue", "--recovery", recovery.value)
    change = partial(configure_queue, recovery=recovery)
    return Switch(recovery.value, label, "tasks.configure_queue", change, words)


SWITCHES = {
    switch.name: switch
    for switch in (
        Switch("pause", gettext_lazy("Pause"), "tasks.pause_queue", pause, ("pause_queue",)),
        Switch("resume", gettext_lazy("Resume"), "tasks.pause_queue", resume, ("resume_queue",)),
        _recovery(gettext_lazy("Recover by itself"), Queue.Recovery.AUTOMATIC),
        _recovery(gettext_lazy("Ask a person"), Queue.Recovery.ASK),
    )
}
