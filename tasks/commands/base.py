"""The base of our commands: common options, signals, errors, exit status, and the report as text or JSON."""

import json
import os
import pwd
import signal
import socket
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError, connection

from tasks.commands import types
from tasks.commands.output import ProgressLine, printable, write_line
from tasks.diagnosis import lock_holders
from tasks.exceptions import RowlockError
from tasks.operations import Progress
from tasks.support.audit import Who
from tasks.support.database import read_committed, short_lock_waits, sqlstate
from tasks.support.reading import one_line

HANDLED = (signal.SIGTERM, signal.SIGINT)
FAILED, USAGE, UNHEALTHY = 1, 2, 3
SHOWN_PROBLEMS = 20
Options = dict[str, Any]
Argument = tuple[str, Callable[[str], Any], str]

# Advice about an error of the database, by SQLSTATE; a broken connection has none.
ADVICE = {
    "55P03": "Another session holds what this command needs; nothing waits longer than 2 s. Try again.",
    "57014": "The statement was cancelled, by its timeout or by a person. Try again.",
    "42P01": "The tables are not there: run `manage.py migrate`.",
    "42703": "The tables are of another version: run `manage.py migrate`.",
    "42501": "The database role of this command lacks a right: see the GRANT that PostgreSQL names.",
    "25006": "The database is read-only, perhaps after a failover: connect to the primary.",
    "53300": "The database has no connection left: try again, or raise max_connections.",
    None: "Is the database server running and reachable? Check DATABASE_URL, then try again.",
}


class Interrupted(KeyboardInterrupt):
    """A signal ends the command. As a KeyboardInterrupt it also makes psycopg cancel the running statement."""


class Signals:
    """TERM and INT raise Interrupted; inside `finishing_item` the first one is only recorded."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._shielded = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals of this process within the block."""
        is_main = threading.current_thread() is threading.main_thread()
        previous = {number: signal.signal(number, self._receive) for number in HANDLED} if is_main else {}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def finishing_item(self) -> Iterator[None]:
        """The body checks `received` between its items and stops by itself."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        is_first = self.received is None
        self.received = number
        if not (is_first and self._shielded):
            raise Interrupted


class UsageError(CommandError):
    """The command line is incomplete or wrong; exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, returncode=USAGE)


@dataclass
class Report:
    """A command's result. `data` is its JSON, `text` the same for people; `problems` are lines for stderr.

    A `failure` is the error message that ends the command with `exit_status`.
    """

    data: dict[str, Any]
    text: str
    problems: list[str] = field(default_factory=list)
    failure: str = ""
    exit_status: int = FAILED


class OperatorCommand(BaseCommand):
    """A subclass adds options in `add_options` and does the work in `run`.

    `argument`: the name of the thing that it works on, its type and help; None without one. `waits_for_locks`: it waits
    for a locked table as long as it takes.
    """

    requires_system_checks: list[str] = []  # they import every page; cron starts this each minute
    changes_data = True
    argument: Argument | None = None
    waits_for_locks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object on stdout.")
        if self.changes_data:
            parser.add_argument("--dry-run", action="store_true", help="Do it and roll it back: nothing changes.")
            parser.add_argument("--reason", type=types.reason, default="", help="Why; the audit keeps it.")
        if self.argument:
            name, kind, text = self.argument
            parser.add_argument(name, type=kind, metavar=name.upper(), help=text)
        self.add_options(parser)

    def add_options(self, parser: CommandParser) -> None:
        """Add the arguments of this command to the common ones."""

    @abstractmethod
    def run(self, options: Options) -> Report:
        """Do the work. Raises UsageError or CommandError when it cannot be done at all."""

    def handle(self, *args: Any, **options: Any) -> None:
        self.signals = Signals()
        failure: CommandError | None = None
        limited = nullcontext() if self.waits_for_locks else short_lock_waits()
        with self.signals.handled(), read_committed(), limited:
            try:
                with explained():
                    report = self.run(options)
                self._print(report, options)
                if self.signals.received:
                    raise Interrupted
                if report.failure:
                    failure = CommandError(printable(report.failure), returncode=report.exit_status)
            except Interrupted:
                status = 128 + (self.signals.received or 0)
                failure = CommandError("Interrupted: what was done until then stays done.", returncode=status)
            except CommandError as error:
                failure = error
                if options["json"] and error.returncode != USAGE:
                    write_line(self.stdout, json.dumps({"error": str(error)}))
        if failure:
            raise failure

    @contextmanager
    def chunks(self, options: Options) -> Iterator[Progress]:
        """The progress of work in chunks: shown on stderr, and stopped by a signal between two chunks."""
        line = ProgressLine(self.stderr)

        def progress(done: int, total: int | None) -> bool:
            if options["verbosity"] > 0:
                line.show(done, total)
            return self.signals.received is None

        with self.signals.finishing_item():
            try:
                yield progress
            finally:
                line.close()

    def _print(self, report: Report, options: Options) -> None:
        hidden = len(report.problems) - SHOWN_PROBLEMS
        for problem in report.problems[:SHOWN_PROBLEMS]:
            write_line(self.stderr, one_line(problem))
        if hidden > 0:
            write_line(self.stderr, f"… and {hidden} more; --json lists them all.")
        if options["json"]:
            write_line(self.stdout, json.dumps(report.data))
        elif options["verbosity"] > 0:
            write_line(self.stdout, printable(report.text))


class ChangeCommand(OperatorCommand):
    """Makes one `change` to the thing that `argument` names, and says whether anything changed.

    `keys` are those of the thing and of the change in the JSON; `texts` say that it was made, and that nothing changed.
    """

    argument: Argument
    keys: tuple[str, str]
    texts: tuple[str, str]
    data: Mapping[str, object] = {}
    change: Callable[..., bool]

    def run(self, options: Options) -> Report:
        target = options[self.argument[0]]
        changed = self.change(target, operator(), **audited(options))
        text = self.texts[0 if changed else 1].format(target)
        return Report(data={self.keys[0]: target, **self.data, self.keys[1]: changed}, text=text)


def operator() -> Who:
    """The user that runs this process, from the kernel and never from the environment, and the host."""
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid{uid}"
    return Who(f"{user}@{socket.gethostname()}", "command")


def audited(options: Options) -> dict[str, Any]:
    """The keywords of an audited action: its reason, and whether it is rolled back."""
    return {"reason": options["reason"], "dry_run": options["dry_run"]}


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of Rowlock and of the database into a line that says what to do next, and who holds a lock."""
    try:
        yield
    except (RowlockError, ImproperlyConfigured) as error:
        raise CommandError(str(error)) from error
    except (DatabaseError, InterfaceError) as error:
        state = sqlstate(error)
        if state not in ADVICE:
            raise
        what = " ".join(str(error).split())
        holders = map(str, lock_holders.holders(connection, error))
        raise CommandError("\n".join([f"The database refused: {what}. {ADVICE[state]}", *holders])) from error
