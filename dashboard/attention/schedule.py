"""Lines for commands under `run_locked` that are overdue, schedules that do not tick, and named locks left behind."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import links
from dashboard.attention.queues import numbers
from dashboard.numbers import decimal
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.locking.named.holder import Holder, Life
from tasks.operations.locks import RIGHT_TO_RELEASE
from tasks.panels import Act, AttentionLine, Severity, Snapshot, Step
from tasks.schedule import expectations
from tasks.schedule.expectations import Entry, Expectation
from tasks.schedule.ticks import GRACE
from tasks.support.database import fetch

SEE, SEE_SCHEDULES = "tasks.view_commandrun", "tasks.view_schedule"
MOST = 1000  # that are counted

# Those that are late, then those that are broken off.
STOPPED = """
SELECT count(*) AS number, min(next_at) AS since, (array_agg(name))[1] AS name
FROM (
    SELECT name, next_at FROM tasks_schedule
    WHERE NOT paused AND ended_at IS NULL AND next_at < statement_timestamp() - %(grace)s::interval
    ORDER BY next_at LIMIT %(most)s::int
) AS late
UNION ALL
SELECT count(*), max(paused_at), (array_agg(name))[1]
FROM (
    SELECT name, paused_at FROM tasks_schedule WHERE problem <> '' ORDER BY paused_at DESC LIMIT %(most)s::int
) AS broken
"""


@panels.attention
def commands(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Overdue commands, and commands whose latest run failed. Skipped runs do not count."""
    for entry in snapshot.once(expectations.board).entries:
        if entry.expectation is not None and entry.expectation.is_overdue:
            yield overdue_line(entry.expectation)
        else:
            yield from failed_lines(entry)


def overdue_line(expectation: Expectation) -> AttentionLine:
    missed = int(expectation.overdue_seconds // expectation.every.total_seconds()) + 1
    text = ngettext(
        "The command %(name)s is overdue: %(number)d run is missing.",
        "The command %(name)s is overdue: %(number)d runs are missing.",
        missed,
    )
    return AttentionLine(
        key=f"overdue:{expectation.name}",
        text=text % {"name": expectation.name, "number": missed},
        brief=_("%(name)s overdue") % {"name": expectation.name},
        severity=Severity.LOSING,
        why=_("Check cron on its machine first: it may have stopped."),
        since=expectation.next_at,
        size=missed,
        step=Step(_("Look at its runs"), links.page("admin:ops_schedule"), command("queue_status")),
        permission=SEE,
    )


def failed_lines(entry: Entry) -> Iterator[AttentionLine]:
    bad = entry.failures
    if not bad:
        return
    last = bad[0]
    text = ngettext(
        "The command %(name)s: last run %(outcome)s.",
        "The command %(name)s: last %(number)d runs %(outcome)s.",
        len(bad),
    )
    outcome = last.outcome_words.lower()
    yield AttentionLine(
        key=f"command-failed:{entry.name}",
        text=text % {"name": entry.name, "number": len(bad), "outcome": outcome},
        brief=f"{entry.name} {outcome}",
        severity=Severity.LOSING,
        since=last.finished_at or last.started_at,
        size=len(bad),
        step=Step(_("Read its output"), links.page("admin:ops_command_run", last.id)),
        permission=SEE,
    )


@panels.attention
def locks(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Named locks whose holder ended without releasing them, and a backend of locks that does not answer."""
    board = snapshot.once(expectations.board)
    for entry in board.entries:
        yield from (lock_line(holder, waiting=len(entry.waiters)) for holder in entry.holders if holder.is_gone)
    if board.problem:
        step = Step(_("See the locks"), links.page("admin:ops_schedule"))
        yield AttentionLine(key="locks-untold", text=board.problem, severity=Severity.SLOW, step=step, permission=SEE)


def lock_line(holder: Holder, *, waiting: int) -> AttentionLine:
    is_expired = holder.life is Life.EXPIRED
    why = _("Its session has ended: the next process that asks gets the lock, after a second check.")
    if is_expired:
        why = _("Its lease is over: the next process that asks gets the lock.")
    shell = ("release_lock", holder.name, "--fence", str(holder.fence), "--reason", "…")
    return AttentionLine(
        key=f"lock:{holder.name}:{holder.fence}",
        text=_("The lock %(name)s was left behind by %(who)s.") % {"name": holder.name, "who": holder.who},
        severity=Severity.SLOW,
        why=why,
        since=holder.expires_at if is_expired else holder.renewed_at,
        size=1 + waiting,
        step=Step(_("See the lock"), links.page("admin:ops_schedule"), command(*shell) if holder.fence else ""),
        permission=SEE,
        act=release(holder) if holder.fence else None,
    )


def release(holder: Holder) -> Act | None:
    url, fields = links.page("admin:ops_release"), (("name", holder.name), ("fence", str(holder.fence)))
    return Act(_("Release…"), url, fields, "release-lock", RIGHT_TO_RELEASE, is_destructive=True) if url else None


class Stopped(NamedTuple):
    """Schedules that do not tick: their number, the earliest or latest time of it, and the name of one."""

    number: int
    since: datetime | None
    name: str | None


def stopped_schedules() -> tuple[Stopped, Stopped]:
    late, broken = fetch(connection, STOPPED, {"grace": GRACE, "most": MOST})
    return Stopped(**late), Stopped(**broken)


@panels.attention
def schedules(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Schedules that nobody ticks, and those that Rowlock paused, as they could not tick or their code has vanished."""
    late, broken = snapshot.once(stopped_schedules)
    if late.number:
        text = ngettext(
            "The schedule %(name)s is late.", "%(number)s schedules are late, %(name)s for longest.", late.number
        )
        yield stopped_line("late", text, late, *late_words(snapshot))
    if broken.number:
        text = ngettext(
            "The schedule %(name)s is broken off.",
            "%(number)s schedules are broken off, %(name)s last.",
            broken.number,
        )
        why = _("It could not tick, or its code no longer declares it: the page says which.")
        yield stopped_line("broken", text, broken, why)


def late_words(snapshot: Snapshot) -> tuple[str, str]:
    """Why schedules are late, and the command that may help."""
    if any(worker.is_alive for worker in snapshot.once(numbers).workers):
        why = _("Workers live, but none knows its function, or its last task is unfinished.")
        return why, command("list_schedules")
    return _("Workers tick, and none is alive."), command("run_worker")


def stopped_line(kind: str, text: str, found: Stopped, why: str, shell: str = "") -> AttentionLine:
    values = {"name": found.name, "number": decimal(found.number) + ("+" if found.number == MOST else "")}
    state = "late" if kind == "late" else "broken"
    return AttentionLine(
        key=f"schedules:{kind}",
        text=text % values,
        severity=Severity.LOSING,
        why=why,
        since=found.since,
        size=found.number,
        step=Step(_("See the schedules"), links.page("admin:ops_schedule", state=state), shell),
        permission=SEE_SCHEDULES,
    )
