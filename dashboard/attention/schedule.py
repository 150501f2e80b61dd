"""Scheduled commands that failed or are overdue, and named locks whose holder is gone."""

from collections.abc import Iterator

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import links
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.locking.named.holder import Holder, Life
from tasks.models import CommandRun
from tasks.panels import Line as AttentionLine
from tasks.panels import Look, Severity, Step
from tasks.schedule import expectations
from tasks.schedule.expectations import Entry, Expectation

BAD = (CommandRun.Outcome.FAILED, CommandRun.Outcome.LOST, CommandRun.Outcome.ABANDONED, CommandRun.Outcome.SIGNALLED)
SEE = "tasks.view_commandrun"


@panels.attention
def commands(look: Look) -> Iterator[AttentionLine]:
    """Overdue commands, and commands whose latest run ended badly. Skipped runs do not count."""
    for line in look.once(expectations.board).entries:
        last = next((run for run in line.runs if run.outcome != CommandRun.Outcome.SKIPPED), None)
        if line.expectation is not None and line.expectation.is_overdue:
            yield overdue_line(line.expectation)
        elif last is not None and last.outcome in BAD:
            yield failed_line(last, line)


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
        severity=Severity.LOSING,
        why=_("Look at the crontab of its machine first: cron itself may have stopped."),
        since=expectation.next_at,
        size=missed,
        step=Step(_("Look at its runs"), links.page("admin:ops_schedule"), command("queue_status")),
        permission=SEE,
    )


def failed_line(last: CommandRun, line: Entry) -> AttentionLine:
    bad = 0
    for run in line.runs:
        if run.outcome not in (*BAD, CommandRun.Outcome.SKIPPED):
            break
        bad += run.outcome in BAD
    text = ngettext(
        "The latest run of the command %(name)s ended badly: %(outcome)s.",
        "The latest %(number)d runs of the command %(name)s ended badly: %(outcome)s.",
        bad,
    )
    told = {"name": line.name, "number": bad, "outcome": str(CommandRun.Outcome(last.outcome).label).lower()}
    return AttentionLine(
        key=f"command-failed:{line.name}",
        text=text % told,
        severity=Severity.LOSING,
        why=_("Exit status %(status)d.") % {"status": last.exit_status} if last.exit_status else "",
        since=last.finished_at or last.started_at,
        size=bad,
        step=Step(_("Read its output"), links.page("admin:ops_command_run", last.id)),
        permission=SEE,
    )


@panels.attention
def locks(look: Look) -> Iterator[AttentionLine]:
    """Named locks whose holder ended without releasing them."""
    for line in look.once(expectations.board).entries:
        for holder in line.holders:
            if holder.is_gone:
                yield lock_line(holder, waiting=len(line.waiters))


def lock_line(holder: Holder, *, waiting: int) -> AttentionLine:
    why = {
        Life.EXPIRED: _("Its lease is over: whoever asks next gets the lock."),
        Life.MISSING: _("Its session has ended: whoever asks next gets the lock, after a second look."),
    }[holder.life]
    shell = ("release_lock", holder.name, "--fence", str(holder.fence), "--reason", "…")
    return AttentionLine(
        key=f"lock:{holder.name}:{holder.fence}",
        text=_("The lock %(name)s was left behind by %(who)s.") % {"name": holder.name, "who": holder.who},
        severity=Severity.SLOW,
        why=why,
        since=holder.expires_at if holder.life is Life.EXPIRED else holder.renewed_at,
        size=1 + waiting,
        step=Step(_("See the lock"), links.page("admin:ops_schedule"), command(*shell) if holder.fence else ""),
        permission=SEE,
    )


@panels.attention
def untold(look: Look) -> Iterator[AttentionLine]:
    """A backend of locks that does not answer."""
    problem = look.once(expectations.board).problem
    if problem:
        step = Step(_("See the locks"), links.page("admin:ops_schedule"))
        yield AttentionLine(key="locks-untold", text=problem, severity=Severity.SLOW, step=step, permission=SEE)
