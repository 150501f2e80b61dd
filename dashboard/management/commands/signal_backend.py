"""`signal_backend`: cancel a backend's query, or end its session."""

from django.core.management.base import CommandParser
from django.db import ProgrammingError

from dashboard.locks import signals
from tasks.commands import OperatorCommand, Options, Report, types
from tasks.commands.base import operator
from tasks.support.database import sqlstate


class Command(OperatorCommand):
    help = "Cancel a backend's query or end its session. `show_locks` prints the whole command."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("pid", type=types.pid, metavar="PID", help="The backend, as `show_locks` shows it.")
        parser.add_argument(
            "--started", type=types.moment, required=True, metavar="ISO", help="Its start: a pid is used again."
        )
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--cancel", action="store_const", dest="action", const="cancel", help="Its query only.")
        which.add_argument("--terminate", action="store_const", dest="action", const="terminate", help="The session.")

    def run(self, options: Options) -> Report:
        pid, action = options["pid"], options["action"]
        try:
            signalled = signals.signal(
                pid, options["started"], action, operator(), reason=options["reason"], dry_run=options["dry_run"]
            )
        except signals.AlreadySignalled as problem:
            return Report(data={"signalled": False}, text=str(problem))
        except signals.NotSignalled as problem:
            return Report(data={"signalled": False}, text="", failure=str(problem))
        except signals.NotAudited as problem:
            return Report(data={"signalled": True, "audited": False}, text="", problems=[str(problem)])
        except ProgrammingError as error:
            if sqlstate(error) != signals.INSUFFICIENT_PRIVILEGE:
                raise
            return Report(data={"signalled": False}, text="", failure=signals.missing_grant(pid))
        would = "would be " if options["dry_run"] else ""
        text = (
            f"Backend {pid} {would}signalled: {action}." if signalled else f"Backend {pid} ended by itself meanwhile."
        )
        return Report(data={"signalled": signalled and not options["dry_run"]}, text=text)
