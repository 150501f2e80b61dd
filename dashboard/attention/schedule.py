"""Scheduled commands that failed or are overdue, and named locks whose holder is gone."""

from collections.abc import Iterator

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import links
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.locking.named.holder import Holder, Life
from tasks.operations.locks import RIGHT_TO_RELEASE
from tasks.panels import Act, AttentionLine, Severity, Snapshot, Step
from tasks.schedule import expectations
from tasks.schedule.expectations import Entry, Expectation

SEE = "tasks.view_commandrun"


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
