"""`show_lock_history`: show who blocked whom at a past time, and the deadlocks around it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import CommandParser

from dashboard.locks import history
from dashboard.locks.history import Past
from dashboard.locks.identity import identify
from dashboard.locks.tree import TreeLine, wait_in_words
from dashboard.models import LockWait
from tasks.commands import OperatorCommand, Options, Report, types
from tasks.commands.output import Part, Table, branches, counted
from tasks.support.durations import spoken

HEADINGS = ("ID", "BEGAN (UTC)", "LASTED", "WHO WAITED", "FOR WHOM", "FOR WHAT")
AROUND = timedelta(minutes=15)


class Command(OperatorCommand):
    help = (
        "Show who waited for whom at a time of the past, and the waits and deadlocks around it, from the samples that "
        "the web server keeps every two seconds while somebody waits."
    )
    examples = ("--at 2026-11-21T03:10Z", "--at 2026-11-21T03:10Z --around 1h")
    changes_data = False

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--at", type=types.moment, required=True, metavar="ISO", help="Like 2026-11-21T03:10Z.")
        parser.add_argument(
            "--around", type=types.duration, default=AROUND, metavar="D", help="Before and after it: 15m when left out."
        )
        parser.add_argument("--before-id", type=types.row_id, metavar="ID", help="Go on below this wait's id.")

    def run(self, options: Options) -> Report:
        past = history.look_back(options["at"], options["around"], before=options["before_id"])
        return Report(data=as_data(past), text=as_text(past, options["at"]))


def as_data(past: Past) -> dict[str, Any]:
    return {
        "blockers": [
            {"pid": line.node.session.pid, "blocked": [below.session.pid for below in line.node.blocked]}
            for line in past.tree
            if line.node.blocked
        ],
        "waits": [wait_data(wait) for wait in past.waits],
        "deadlocks": past.deadlocks,
        "before_id": past.before,
    }


def wait_data(wait: LockWait) -> dict[str, Any]:
    return {
        "id": wait.pk,
        "since": wait.waiting_since.isoformat(),
        "seconds": wait.seconds,
        "pid": wait.blocked_pid,
        "who": str(identify(wait.blocked_who)),
        "task": wait.blocked_task,
        "blocked_by": wait.blocker_pid,
        "blocker": str(identify(wait.blocker_who)),
        "blocker_task": wait.blocker_task,
        "locktype": wait.locktype,
        "mode": wait.mode,
        "target": wait.target,
    }


def as_text(past: Past, at: datetime) -> list[Part]:
    then = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    tree = branches([(line.indent - 1, tree_line(line)) for line in past.tree])
    parts: list[Part] = [tree if past.tree else f"Nobody waited for a lock at {then}."]
    parts.append(Table(HEADINGS, [wait_row(wait) for wait in past.waits]) if past.waits else "No wait around it.")
    if past.before:
        parts.append(f"There are older ones: go on with --before-id {past.before}.")
    return [*parts, f"{counted(past.deadlocks, 'deadlock')} around it."]


def tree_line(line: TreeLine) -> str:
    session, waits = line.node.session, line.node.waits_for
    parts = [
        session.label or f"{session.pid}  {session.identity}",
        wait_in_words(waits) if waits else session.state or "",
        f"{line.node.victims} blocked" if line.node.blocked else "",
    ]
    return " · ".join(filter(None, parts))


def wait_row(wait: LockWait) -> tuple[Any, ...]:
    who, blocker = f"{wait.blocked_pid} {identify(wait.blocked_who)}", identify(wait.blocker_who)
    began = f"{wait.waiting_since.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return wait.pk, began, spoken(wait.seconds), who, f"{wait.blocker_pid} {blocker}", wait.target or wait.locktype
