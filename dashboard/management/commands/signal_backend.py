"""`signal_backend`: cancel a backend's query, or end its session."""

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.db import ProgrammingError

from dashboard.locks import signals
from tasks.commands import OperatorCommand, Options, Report, UsageError, types
from tasks.commands.base import operator
from tasks.support.database import sqlstate


class Command(OperatorCommand):
    help = "Cancel a backend's query or end its session. `show_locks` prints the whole command."
    examples = ("812 --started 2026-11-21T03:10:00+00:00 --cancel", '--root 915 --terminate --reason "blocks the shop"')

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("pid", type=types.pid, nargs="?", metavar="PID", help="The backend.")
        parser.add_argument("--started", type=types.moment, metavar="ISO", help="Its start: a pid is used again.")
        parser.add_argument("--root", type=types.pid, metavar="PID", help="Instead: the root of this session's chain.")
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--cancel", action="store_const", dest="action", const="cancel", help="Its query only.")
        which.add_argument("--terminate", action="store_const", dest="action", const="terminate", help="The session.")

    def run(self, options: Options) -> Report:
        action, root_of, is_dry = options["action"], options["root"], options["dry_run"]
        try:
            pid, started = target(options)
        except signals.NotSignalled as problem:
            return Report(data={"signalled": False}, text="", failure=str(problem))
        data: dict[str, Any] = {"pid": pid} if root_of else {}
        try:
            signalled = signals.signal(pid, started, action, operator(), reason=options["reason"], dry_run=is_dry)
        except signals.AlreadySignalled as problem:
            return Report(data={"signalled": False, **data}, text=str(problem))
        except signals.NotSignalled as problem:
            return Report(data={"signalled": False, **data}, text="", failure=str(problem))
        except signals.NotAudited as problem:
            return Report(data={"signalled": True, "audited": False, **data}, text="", problems=[str(problem)])
        except ProgrammingError as error:
            if sqlstate(error) != signals.INSUFFICIENT_PRIVILEGE:
                raise
            return Report(data={"signalled": False, **data}, text="", failure=signals.missing_grant(pid))
        would = "would be " if is_dry else ""
        text = (
            f"Backend {pid} {would}signalled: {action}." if signalled else f"Backend {pid} ended by itself meanwhile."
        )
        if root_of:
            text += f" It is the root of the chain of {root_of}."
        return Report(data={"signalled": signalled and not is_dry, **data}, text=text)


def target(options: Options) -> tuple[int, datetime]:
    """The backend to signal, and its start. Raises UsageError, NotSignalled."""
    pid, started, root_of = options["pid"], options["started"], options["root"]
    if root_of and not pid and not started:
        return signals.root_of_chain(root_of)
    if root_of or not pid or not started:
        raise UsageError("Give PID with --started, as show_locks prints them, or --root PID alone.")
    return pid, started
