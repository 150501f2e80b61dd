"""`run_worker`: take and run tasks until TERM or INT."""

import contextlib
import json
import pkgutil
from contextlib import closing
from typing import Any

import psycopg
from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError, ProgrammingError, connections
from django.db.migrations.recorder import MigrationRecorder

from tasks import migrations
from tasks.commands import TerminalCommand, types
from tasks.commands.base import explained
from tasks.commands.output import counted, write_line
from tasks.exceptions import PooledSession, TooFewConnections
from tasks.framework import payload
from tasks.models import Task
from tasks.queue import recovery
from tasks.queue.strategies import DEFAULT_STRATEGY, STRATEGIES
from tasks.support import database
from tasks.support.database import read_committed, short_lock_waits
from tasks.worker import options as budget
from tasks.worker.options import MOST_COROUTINES, MOST_THREADS, Options
from tasks.worker.supervisor import Supervisor

HELP = """Takes and runs tasks until TERM or INT. The first signal finishes what runs within the grace period
(ROWLOCK_GRACE_SECONDS) and gives back what has not begun; the second ends at once."""


class Command(TerminalCommand):
    help = HELP
    examples = ("--queue mail --queue default --concurrency 4", "--burst --json")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queue", action="append", type=types.name, dest="queues", metavar="Q",
            help="Serve this queue; may be repeated, the first named is served first. Default: every queue.",
        )  # fmt: skip
        parser.add_argument("--strategy", choices=sorted(STRATEGIES), default=DEFAULT_STRATEGY, help="How to claim.")
        parser.add_argument("--concurrency", type=types.count, default=1, metavar="N", help="Worker processes.")
        parser.add_argument(
            "--threads", type=types.count_up_to(MOST_THREADS), default=1, metavar="N",
            help="Synchronous handlers that run at once in each process.",
        )  # fmt: skip
        parser.add_argument(
            "--coroutines", type=types.count_up_to(MOST_COROUTINES), default=1, metavar="N",
            help="`async def` handlers that run at once in each process.",
        )  # fmt: skip
        parser.add_argument(
            "--batch-size", type=types.count, metavar="N",
            help="Claim at most N tasks at once. The size adapts to the tasks' run times below that.",
        )  # fmt: skip
        parser.add_argument("--burst", action="store_true", help="End when nothing is due.")
        parser.add_argument("--max-tasks", type=types.count, metavar="N", help="End after N tasks.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object on stdout at the end.")

    def handle(self, *args: Any, **options: Any) -> None:
        names = ("queues", "strategy", "concurrency", "threads", "coroutines", "batch_size", "burst", "max_tasks")
        supervisor = Supervisor(Options(**{name: options[name] for name in names}))
        if problem := payload.problem():  # before it claims what it could not read
            raise CommandError(problem)
        check_sessions(supervisor.options)
        with read_committed(), short_lock_waits(), explained():
            refuse_older_tables()
            if options["burst"]:
                # A burst from cron may be the only worker, so nobody else would recover a dead one's tasks.
                recovery.recover(include_ask=False)
        connections.close_all()
        if options["verbosity"] > 0:
            write_line(self.stderr if options["json"] else self.stdout, served(supervisor.options))
        exit_status = supervisor.run()
        if options["json"]:
            write_line(self.stdout, json.dumps(supervisor.report))
        elif options["verbosity"] > 0:
            write_line(self.stdout, ", ".join(f"{name} {number}" for name, number in supervisor.report.items()))
        if exit_status:
            raise SystemExit(exit_status)


def served(options: Options) -> str:
    """The work that this worker takes, in one line: `Serves mail, default · skip_locked · 4 processes`."""
    queues = ", ".join(options.queues or ()) or "every queue"
    ends = [f"ends after {counted(options.max_tasks)}"] if options.max_tasks else []
    ends += ["ends when nothing is due"] if options.burst else []
    processes = counted(options.concurrency, "process", "processes")
    return " · ".join((f"Serves {queues}", f"strategy {options.strategy}", processes, *ends))


def check_sessions(options: Options) -> None:
    """Fail if workers cannot get their own session or any connection; warn if some may be missing."""
    with contextlib.suppress(psycopg.OperationalError):  # the supervisor waits for an unreachable database
        try:
            with closing(database.own_session("rowlock:check")) as connection:
                budget.check(connection, options)
        except (PooledSession, TooFewConnections) as error:
            raise CommandError(str(error)) from error


def refuse_older_tables() -> None:
    """Fail if the tables are missing or of an older version: statements would fail or do half the work."""
    # If the database is unreachable or this table unreadable, the first failing statement will report it.
    with contextlib.suppress(OperationalError, ProgrammingError):
        recorded = MigrationRecorder(connections["default"]).applied_migrations()
        applied = {name for app, name in recorded if app == "tasks"}
        missing = {module.name for module in pkgutil.iter_modules(migrations.__path__)} - applied
        if not applied and Task._meta.db_table not in connections["default"].introspection.table_names():
            raise CommandError("The tables are not there: run `python manage.py migrate` first.")
        if applied and missing:
            raise CommandError(
                f"The database is that of an older version, without {', '.join(sorted(missing))}: "
                "run `python manage.py migrate` first."
            )
