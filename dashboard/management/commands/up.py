"""`up`: run everything that a checkout needs to be seen in a browser."""

import argparse
import os
import signal
import sys
from typing import Any

from django.core.management.base import CommandError, CommandParser

from dashboard import project
from dashboard.embedded import ServerError
from dashboard.up.startup import CannotStart, Plan, run
from dashboard.up.supervisor import Console, Supervisor
from tasks import conf
from tasks.commands import TerminalCommand, types

HELP = """Starts PostgreSQL (this checkout's own unless DATABASE_URL is set), prepares the site, runs a worker and the
web server until Ctrl-C or TERM, and stops what it started: exit status 0. A second signal kills: 130 or 143."""
MARGIN_SECONDS = 10  # beyond the grace period of running tasks


def port(text: str) -> int:
    return types.whole_number(1, 65_535, "a port: a whole number from 1 to 65535")(text)


def not_negative(text: str) -> int:
    return types.whole_number(0, 10_000, "a number of processes, from 0")(text)


class Command(TerminalCommand):
    help = HELP
    examples = ("", "--port 8080 --workers 2 --no-demo")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--port", type=port, default=os.environ.get("PORT") or "8000", metavar="N",
            help="HTTP port on 127.0.0.1 (default: PORT, or 8000).",
        )  # fmt: skip
        parser.add_argument("--workers", type=not_negative, default=1, metavar="N", help="Worker processes (1).")
        parser.add_argument(
            "--demo", action=argparse.BooleanOptionalAction,
            help="Load the demo once, and keep it alive for 15 minutes. Default: yes, with DATABASE_URL no.",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        project.refuse_elsewhere("In yours, start its web server and `run_worker`.")
        # A shell makes background jobs (`command &`) ignore these; all that we start would ignore them too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        own_server = not os.environ.get("DATABASE_URL")
        plan = Plan(
            port=options["port"],
            workers=options["workers"],
            demo=own_server if options["demo"] is None else options["demo"],
            embedded=own_server,
        )
        supervisor = Supervisor(Console(sys.stdout), patience_seconds=conf.get("GRACE_SECONDS") + MARGIN_SECONDS)
        try:
            run(plan, supervisor)
        except (CannotStart, ServerError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:  # before anything was started
            raise SystemExit(128 + signal.SIGINT) from None
        if supervisor.hurried_by:
            raise SystemExit(128 + supervisor.hurried_by)
