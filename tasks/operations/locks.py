"""Free a named lock whose holder is gone, and stop expecting a command's runs."""

import time
from dataclasses import dataclass

from django.db import connection

from tasks.exceptions import LockUnavailable
from tasks.locking.named import backends
from tasks.locking.named.holder import Holder, Life
from tasks.models import ExpectedCommand, Lock
from tasks.operations.verb import short_waits
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.durations import spoken

RIGHT_TO_RELEASE, RIGHT_TO_FORGET = "tasks.release_lock", "tasks.forget_command"
SECOND_CHECK_SECONDS = 0.3

# Only as it was seen: a holder that came back has renewed its lease.
FREE = """
WITH freed AS (
    UPDATE tasks_lock SET owner = NULL, expires_at = NULL, presence_epoch = NULL, released_at = clock_timestamp()
    WHERE name = %(name)s::text AND fence = %(fence)s::bigint AND expires_at = %(expires_at)s::timestamptz
    RETURNING name
)
SELECT pg_notify(rowlock_lock_channel(), name) FROM freed
"""


@dataclass(frozen=True)
class Release:
    """The result; if the lock was not freed, `problem` says why. `holder` is its holder at that moment.

    `is_over`: the lock was already released, so there was nothing to do.
    """

    released: bool
    holder: Holder | None = None
    problem: str = ""
    is_over: bool = False


def holder_of(name: str, fence: int) -> Holder | None:
    """The lock's current or dead holder; among several backends preferably the one with this fence.

    Raises LockUnavailable when the backend that may keep the lock does not answer.
    """
    seen = backends.everywhere([name])
    taken = [holder for holder in seen.holders if holder.life is not Life.FREE]
    if not taken and seen.problem:
        raise LockUnavailable(seen.problem)
    return min(taken, key=lambda holder: holder.fence != fence, default=None)


def release_lock(name: str, fence: int, who: Who, *, reason: str = "", dry_run: bool = False) -> Release:
    """Free the lock that is held under `fence`, if its holder is gone.

    A holder is gone if its lease expired, or if its session was missing in two checks. A holder without a visible
    session (another language, Redis) may still be alive, so freeing its lock needs a reason. A live holder keeps its
    lock.
    """
    holder = holder_of(name, fence)
    if holder is not None and holder.life is Life.MISSING:
        time.sleep(SECOND_CHECK_SECONDS)
        holder = holder_of(name, fence)
    if problem := _refusal(name, fence, holder, reason):
        # PostgreSQL may have seen it held under that fence or a later one; Redis keeps no history.
        was_held = holder is None and Lock.objects.filter(name=name, fence__gte=fence).exists()
        return Release(False, holder, problem, is_over=was_held)
    assert holder is not None
    with short_waits(rollback=dry_run):
        audit.record(connection, who, f"release fence={fence}", [Change(audit.lock(name))], reason)
        is_freed = dry_run or _free(holder)
        if not is_freed:
            connection.set_rollback(True)
    problem = "" if is_freed else f"The lock {name!r} changed hands at this moment. Try again."
    return Release(is_freed, holder, problem)


def forget_command(name: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Stop monitoring this command; True if it was monitored."""
    with short_waits(rollback=dry_run):
        was_expected = bool(ExpectedCommand.objects.filter(pk=name).delete()[0])
        if was_expected:
            audit.record(connection, who, "forget", [Change(audit.command(name))], reason)
    return was_expected


def _refusal(name: str, fence: int, holder: Holder | None, reason: str) -> str:
    if holder is None:
        return f"Nobody holds the lock {name!r}: there is nothing to release."
    if holder.fence != fence:
        return f"The lock {name!r} is held by {holder.who} under fence {holder.fence}, not under {fence} any more."
    if holder.is_gone or (holder.life is Life.UNSEEN and reason):
        return ""
    left = spoken(holder.seconds_left or 0)
    why = {
        Life.ALIVE: f"lives: its session is there. Stop process {holder.pid} on {holder.hostname} to free the lock",
        Life.RESTARTED: f"may come back after the restart of the database; without it the lock is free in {left}",
        Life.UNSEEN: f"cannot be seen, so that it may live; its lease ends in {left}. Give a reason to free it before",
    }
    return f"The holder of the lock {name!r}, {holder.who}, {why[holder.life]}."


def _free(holder: Holder) -> bool:
    if holder.backend == backends.REDIS:
        from tasks.locking.named import redis

        with redis.connected(backends.redis_url(backends.redis_backend() or backends.REDIS)) as client:
            return redis.free(client, holder.name, holder.fence or 0)
    with connection.cursor() as cursor:
        cursor.execute(FREE, {"name": holder.name, "fence": holder.fence, "expires_at": holder.expires_at})
        return bool(cursor.rowcount)
