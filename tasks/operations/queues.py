"""Settings of a queue: pause, recovery from dead workers, and its objective."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from tasks.diagnosis.finding import command
from tasks.models import LONGEST_OBJECTIVE, Queue
from tasks.operations.verb import short_waits
from tasks.queue import wakeup
from tasks.support import audit, durations, reading
from tasks.support.audit import Change, Who
from tasks.support.reading import Unreadable

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

# Likewise no objective needs no new row.
SET_OBJECTIVE = """
INSERT INTO tasks_queue (name, objective)
SELECT %(name)s::text, %(objective)s::interval
WHERE %(objective)s::interval IS NOT NULL OR EXISTS (SELECT FROM tasks_queue WHERE name = %(name)s::text)
ON CONFLICT (name) DO UPDATE SET objective = excluded.objective
WHERE tasks_queue.objective IS DISTINCT FROM excluded.objective
"""


@dataclass(frozen=True)
class Switch:
    """One setting of a queue: its button's label and right, its statement, the word of the audit, and its command.

    `asks`: the page asks before it changes this.
    """

    name: str
    label: str | Promise
    right: str
    statement: str
    action: str
    words: tuple[str, ...]
    asks: bool = False

    def change(self, queue_name: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
        """Set it, audit it and wake the workers; False if the queue was like that already."""
        params = {"name": reading.name(queue_name), "actor": who.actor, "recovery": self.name}
        with short_waits(rollback=dry_run), connection.cursor() as cursor:
            cursor.execute(self.statement, params)
            changed = bool(cursor.rowcount)
            if changed:
                audit.record(connection, who, self.action, [Change(audit.queue(queue_name))], reason)
                wakeup.announce(connection)
        return changed

    def command(self, queue_name: str) -> str:
        return command(self.words[0], queue_name, *self.words[1:])


def _recovery(label: str | Promise, recovery: str) -> Switch:
    words = ("configure_queue", "--recovery", recovery)
    return Switch(recovery, label, "tasks.configure_queue", CONFIGURE, f"configure recovery={recovery}", words, True)


SWITCHES = {
    switch.name: switch
    for switch in (
        Switch("pause", gettext_lazy("Pause"), "tasks.pause_queue", PAUSE, "pause", ("pause_queue",)),
        Switch("resume", gettext_lazy("Resume"), "tasks.pause_queue", RESUME, "resume", ("resume_queue",)),
        _recovery(gettext_lazy("Recovery: automatic"), Queue.Recovery.AUTOMATIC.value),
        _recovery(gettext_lazy("Recovery: manual"), Queue.Recovery.ASK.value),
    )
}
pause, resume = SWITCHES["pause"].change, SWITCHES["resume"].change


def set_objective(
    queue_name: str, who: Who, objective: timedelta | None, *, reason: str = "", dry_run: bool = False
) -> bool:
    """Set how long a due task of the queue may wait (None: no objective), and audit it; False if it was so already.

    It changes nothing for workers: past it, a line needs attention. Raises Unreadable unless it is 1 s to 366 days.
    """
    if objective is not None and not timedelta(seconds=1) <= objective <= LONGEST_OBJECTIVE:
        raise Unreadable(f"An objective is 1s to {LONGEST_OBJECTIVE.days}d.")
    action = f"configure objective={durations.describe(objective) if objective else 'none'}"
    params: dict[str, Any] = {"name": reading.name(queue_name), "objective": objective}
    with short_waits(rollback=dry_run), connection.cursor() as cursor:
        cursor.execute(SET_OBJECTIVE, params)
        changed = bool(cursor.rowcount)
        if changed:
            audit.record(connection, who, action, [Change(audit.queue(queue_name))], reason)
    return changed
