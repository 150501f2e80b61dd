"""The base of our commands: common options, signals, errors, exit status, and the report as text or JSON."""

import json
import os
import pwd
import shutil
import signal
import socket
import textwrap
import threading
import time
from abc import abstractmethod
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from tasks.commands import types
from tasks.commands.output import Part, ProgressLine, Window, printable, render, write_line
from tasks.diagnosis import lock_holders
from tasks.exceptions import RowlockError
from tasks.operations import Progress
from tasks.support.audit import Who
from tasks.support.database import name_session_of_command, read_committed, short_lock_waits, sqlstate
from tasks.support.reading import one_line

HANDLED = (signal.SIGTERM, signal.SIGINT)
FAILED, USAGE, UNHEALTHY = 1, 2, 3
SHOWN_PROBLEMS = 20
# Django's own options: they work, but no help lists them.
DJANGOS = frozenset(
    {"--version", "--settings", "--pythonpath", "--traceback", "--no-color", "--force-color", "--skip-checks"}
)
HOME, NEXT_LINE, CLEAR_BELOW = "\033[H", "\033[K\n", "\033[J"
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
    """A command's result. `data` is its JSON, `text` the same for people, in parts if it has tables.

    `problems` are lines for stderr.

    A `failure` is the error message that ends the command with `exit_status`.
    """

    data: dict[str, Any]
    text: Part | Sequence[Part]
    problems: list[str] = field(default_factory=list)
    failure: str = ""
    exit_status: int = FAILED


class HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's order of options, with each example on a line of its own."""


class TerminalCommand(BaseCommand):
    """A command with examples in its help, and whose errors stand alone, without `CommandError:`.

    `examples`: the arguments of two command lines.
    """

    requires_system_checks: list[str] = []  # they import every page; cron starts some each minute
    suppressed_base_arguments = set(DJANGOS)
    examples: Sequence[str] = ()
    is_typed = False

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault("formatter_class", HelpFormatter)
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.description = textwrap.fill(self.help, shutil.get_terminal_size().columns - 2)
        lines = [f"  python manage.py {subcommand} {arguments}".rstrip() for arguments in self.examples]
        parser.epilog = "\n".join(["examples:", *lines])
        return parser

    def run_from_argv(self, argv: list[str]) -> None:
        self.is_typed = True
        name_session_of_command(argv[1])
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> str | None:
        if os.environ.get("NO_COLOR") and not options["force_color"]:
            options["no_color"] = True
        try:
            return super().execute(*args, **options)
        except CommandError as error:
            if not self.is_typed or options["traceback"]:
                raise
            write_line(self.stderr, str(error))
            raise SystemExit(error.returncode) from error


class OperatorCommand(TerminalCommand):
    """A subclass adds options in `add_options` and does the work in `run`.

    `argument`: the name of the thing that it works on, its type and help; None without one. `waits_for_locks`: it waits
    for a locked table as long as it takes. `is_watchable`: it shows a state that --watch shows again and again.
    """

    changes_data = True
    is_watchable = False
    argument: Argument | None = None
    waits_for_locks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object on stdout.")
        if self.changes_data:
            parser.add_argument("--dry-run", action="store_true", help="Do it and roll it back: nothing changes.")
            parser.add_argument("--reason", type=types.reason, default="", help="Why; the audit keeps it.")
        if self.is_watchable:
            text = "Show it again every SECONDS (2 when left out), until Ctrl-C."
            parser.add_argument("--watch", nargs="?", type=types.interval, const=2.0, metavar="SECONDS", help=text)
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
        with self.signals.handled():
            try:
                report = self._report(options)
                if options.get("watch"):
                    report = self._watch(report, options)
                else:
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

    def _report(self, options: Options) -> Report:
        limited = nullcontext() if self.waits_for_locks else short_lock_waits()
        with read_committed(), limited, explained():
            return self.run(options)

    def _watch(self, report: Report, options: Options) -> Report:
        """Show this report and newer ones until a signal, or until the reader leaves: then return the latest.

        A failure of a newer one is shown like it; the next may succeed.
        """
        show, window = self._print_round, Window.of(self.stdout, options)
        if window.rows and not options["json"]:
            write_line(self.stdout, "\n" * window.rows)  # what stands there scrolls away
            show = self._draw
        try:
            while show(report, options):
                time.sleep(options["watch"])
                connection.close_if_unusable_or_obsolete()
                try:
                    report = self._report(options)
                except CommandError as error:
                    report = Report({"error": str(error)}, "", failure=str(error), exit_status=error.returncode)
        except Interrupted:
            raise SystemExit(128 + (self.signals.received or 0)) from None
        return report

    def _draw(self, report: Report, options: Options) -> bool:
        """Draw the report over the one before it; False when the reader has left."""
        window = Window.of(self.stdout, options)
        wrong = [*map(one_line, report.problems), *printable(report.failure).splitlines()]
        at = f"{timezone.localtime():%H:%M:%S}, every {options['watch']:g} s; Ctrl-C ends it"
        lines = [at, *wrong, "", *render(report.text, window).split("\n")]
        return write_line(self.stdout, HOME + NEXT_LINE.join(window.fitting(lines)) + CLEAR_BELOW)

    def _print_round(self, report: Report, options: Options) -> bool:
        if not options["json"]:
            write_line(self.stdout, f"{timezone.localtime():%H:%M:%S}")
        is_read = self._print(report, options)
        if is_read and report.failure:
            write_line(self.stderr, printable(report.failure))
        return is_read

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

    def _print(self, report: Report, options: Options) -> bool:
        """Print the report; False when the reader of stdout has left."""
        hidden = len(report.problems) - SHOWN_PROBLEMS
        for problem in report.problems[:SHOWN_PROBLEMS]:
            write_line(self.stderr, one_line(problem))
        if hidden > 0:
            write_line(self.stderr, f"… and {hidden} more; --json lists them all.")
        if options["json"]:
            return write_line(self.stdout, json.dumps(report.data))
        if options["verbosity"] > 0:
            return write_line(self.stdout, render(report.text, Window.of(self.stdout, options)))
        return True


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
