"""Limits of keys and queues: how many at once, how many starts in a period, and the pause of a key."""

from typing import Any, Final, Literal

from django.db import connection

from tasks.models import SLOTS, Limit, Queue
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


def _change(row: Limit | Queue, values: dict[str, Any], target: str, who: Who, reason: str, dry_run: bool) -> bool:
    with short_waits(rollback=dry_run):
        model: Any = type(row)
        model.objects.bulk_create([row], ignore_conflicts=True)
        found = model.objects.select_for_update().get(pk=row.pk)
        changes = {name: value for name, value in values.items() if getattr(found, name) != value}
        if not changes:
            return False
        if changes.get("paused") is not None:
            is_paused = changes["paused"]
            values |= {
                "paused_at": StatementTimestamp() if is_paused else None,
                "paused_by": who.actor if is_paused else "",
            }
        model.objects.filter(pk=row.pk).update(**values)
        audit.record(connection, who, _action(changes), [Change(target)], reason)
        wakeup.announce(connection)
    return True


def _action(changes: dict[str, Any]) -> str:
    """The audit's words: `limit max_running=3 rate=100/m`, or `pause`."""
    if list(changes) == ["paused"]:
        return "pause" if changes["paused"] else "resume"
    words = ["limit"]
    if "max_running" in changes:
        words.append(f"max_running={changes['max_running'] or 'declared'}")
    if "rate" in changes or "period_seconds" in changes:
        words.append(f"rate={durations.rate_text(changes.get('rate'), changes.get('period_seconds'))}")
    if "paused" in changes:
        words.append(f"paused={str(changes['paused']).lower()}")
    return " ".join(words)
