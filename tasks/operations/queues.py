"""The settings that operators change: pause, limits, recovery and objective of queues; pause and limits of keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from django.db import connection
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from tasks.diagnosis.finding import command
from tasks.models import LONGEST_OBJECTIVE, SLOTS, Limit, Queue
from tasks.operations.verb import short_waits
from tasks.queue import wakeup
from tasks.support import audit, durations, reading
from tasks.support.audit import Change, Who
from tasks.support.durations import StatementTimestamp
from tasks.support.reading import Unreadable

KEEP: Final = "keep"  # what it is
Keep = Literal["keep"]


def set_limit(
    key: str,
    who: Who,
    *,
    max_running: int | Keep | None = KEEP,
    rate: str | Keep | None = KEEP,
    paused: bool | Keep = KEEP,
    reason: str = "",
    dry_run: bool = False,
) -> bool:
    """Set what an operator allows a key, audit it and wake the workers; False if it was like that already.

    None: what tasks declare applies again. `rate`: "100/m". Tasks that run stay: below their number, none begins until
    enough have ended. Raises Unreadable.
    """
    values = _values(max_running, rate)
    if paused != KEEP:
        values["paused"] = paused
    limit = Limit(key=reading.name(key))
    return _change(limit, values, audit.limit(key), who, reason, dry_run)


def set_queue_limit(
    queue_name: str,
    who: Who,
    *,
    max_running: int | Keep | None = KEEP,
    rate: str | Keep | None = KEEP,
    reason: str = "",
    dry_run: bool = False,
) -> bool:
    """Likewise for a queue, over all its tasks; None: no limit."""
    queue = Queue(name=reading.name(queue_name))
    return _change(queue, _values(max_running, rate), audit.queue(queue_name), who, reason, dry_run)


def _values(max_running: int | str | None, rate: str | None) -> dict[str, Any]:
    """The columns to set. Raises Unreadable."""
    values: dict[str, Any] = {}
    if max_running != KEEP:
        if max_running is not None and not (type(max_running) is int and 1 <= max_running <= SLOTS):
            raise Unreadable(f"{max_running!r} is no number of tasks at once: write 1 to {SLOTS}.")
        values["max_running"] = max_running
    if rate != KEEP:
        found = (None, None) if rate is None else durations.rate_of(rate)
        if found is None:
            raise Unreadable(f"{reading.shown(str(rate))} is no rate: write a number and s, m, h or d, like 100/m.")
        values["rate"], values["period_seconds"] = found
    return values


def _change(
    row: Limit | Queue, values: dict[str, Any], target: str, who: Who, reason: str, dry_run: bool, action: str = ""
) -> bool:
    with short_waits(rollback=dry_run):
        model: Any = type(row)
        model.objects.bulk_create([row], ignore_conflicts=True)
        found = model.objects.select_for_update().get(pk=row.pk)
        changes = {name: value for name, value in values.items() if getattr(found, name) != value}
        if not changes:
            connection.set_rollback(True)  # without a row it was like that too, and needs none
            return False
        if changes.get("paused") is not None:
            is_paused = changes["paused"]
            values |= {
                "paused_at": StatementTimestamp() if is_paused else None,
                "paused_by": who.actor if is_paused else "",
            }
        model.objects.filter(pk=row.pk).update(**values)
        audit.record(connection, who, action or _action(changes, values), [Change(target)], reason)
        wakeup.announce(connection)
    return True


def _action(changes: dict[str, Any], values: dict[str, Any]) -> str:
    """The audit's words: `limit max_running=3 rate=100/m`, or `pause`."""
    if list(changes) == ["paused"]:
        return "pause" if changes["paused"] else "resume"
    words = ["limit"]
    if "max_running" in changes:
        words.append(f"max_running={changes['max_running'] or 'declared'}")
    if "rate" in changes or "period_seconds" in changes:
        words.append(f"rate={durations.rate_text(values['rate'], values['period_seconds'])}")
    if "paused" in changes:
        words.append(f"paused={str(changes['paused']).lower()}")
    return " ".join(words)


@dataclass(frozen=True)
class Switch:
    """One setting of a queue: its button's label and right, its columns, the words of the audit, and its command.

    `asks`: the page asks before it changes this.
    """

    name: str
    label: str | Promise
    right: str
    values: Mapping[str, Any] = field(hash=False)
    action: str
    words: tuple[str, ...]
    asks: bool = False

    def change(self, queue_name: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
        """Set it, audit it and wake the workers; False if the queue was like that already."""
        queue = Queue(name=reading.name(queue_name))
        return _change(queue, dict(self.values), audit.queue(queue_name), who, reason, dry_run, self.action)

    def command(self, queue_name: str) -> str:
        return command(self.words[0], queue_name, *self.words[1:])


def _recovery(label: str | Promise, recovery: str) -> Switch:
    words = ("configure_queue", "--recovery", recovery)
    action = f"configure recovery={recovery}"
    return Switch(recovery, label, "tasks.configure_queue", {"recovery": recovery}, action, words, True)


SWITCHES = {
    switch.name: switch
    for switch in (
        Switch("pause", gettext_lazy("Pause"), "tasks.pause_queue", {"paused": True}, "pause", ("pause_queue",)),
        Switch("resume", gettext_lazy("Resume"), "tasks.pause_queue", {"paused": False}, "resume", ("resume_queue",)),
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
    queue = Queue(name=reading.name(queue_name))
    return _change(queue, {"objective": objective}, audit.queue(queue_name), who, reason, dry_run, action)
