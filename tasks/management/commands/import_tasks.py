"""`import_tasks`: bring over what waits in another queue."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tasks.commands import OperatorCommand, Options, Report, UsageError, operator, types
from tasks.commands.output import Part, Table, counted, render, said, write_line
from tasks.importing import SOURCES, solid_queue
from tasks.importing.found import Found
from tasks.operations.importing import Import, Tally

CSV = "csv"


def pair(written: str) -> tuple[str, str]:
    """A function's name there and its path here."""
    old, _, new = types.text(written).partition("=")
    if not old or not new:
        raise ArgumentTypeError(f"{written!a} is not a pair: write OLD=NEW, like proj.tasks.mail=shop.tasks.mail.")
    return old, new


class Command(OperatorCommand):
    help = (
        "Import schedules, waiting and scheduled tasks from another queue's tables in this database, or from a CSV "
        "file of Solid Queue's jobs. First it lists by name and number what cannot be carried over, then it asks. "
        "Each row is imported once, however often this is started. The other queue's rows stay as they are. Exit "
        "status 1 when something is left."
    )
    examples = (
        "--from procrastinate --map proj.tasks.send=shop.tasks.send --dry-run",
        "--from csv jobs.csv --map SendMailJob=shop.tasks.send_mail --yes",
    )

    def add_options(self, parser: CommandParser) -> None:
        sources = [*SOURCES, CSV]
        parser.add_argument("--from", dest="source", required=True, choices=sources, help="The other queue.")
        parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="The file, with --from csv.")
        mapping = "A function's name there, and its path here; may be repeated. Default: the same path."
        parser.add_argument("--map", action="append", type=pair, default=[], metavar="OLD=NEW", help=mapping)
        parser.add_argument("--yes", action="store_true", help="Import without asking.")

    def run(self, options: Options) -> Report:
        prepared = partial(
            Import, options["source"], _reader(options), operator(), dict(options["map"]), options["reason"]
        )
        with self.chunks(options) as progress:
            found = prepared(dry_run=True).perform(progress)
        if options["dry_run"] or not found.is_whole or not found.imported:
            return _report(found, options)
        self._ask(found, options)
        with self.chunks(options) as progress:
            done = prepared().perform(progress, _rows(found))
        return _report(done, options)

    def _ask(self, found: Tally, options: Options) -> None:
        """List what would be imported and what would stay, and go on with a person's consent."""
        if options["verbosity"] > 0 or found.left:
            write_line(self.stderr, render(_parts(found)))
        if options["yes"]:
            return
        self.stderr.write(f"Import {_sum(found)}? [y/N] ", style_func=str, ending="")
        self.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:
            raise UsageError("Nobody is there to ask: give --yes to import, or --dry-run to see the list.")
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was imported.")


def _reader(options: Options) -> Callable[[], Iterator[Found]]:
    if (options["source"] == CSV) != bool(options["file"]):
        raise UsageError("--from csv takes a FILE, and no other source does.")
    return partial(solid_queue.read, options["file"]) if options["file"] else SOURCES[options["source"]]


def _rows(tally: Tally) -> int:
    """The rows that were seen."""
    return tally.imported + tally.already + tally.left.total()


def _sum(tally: Tally) -> str:
    tasks = tally.tasks.total() - tally.duplicates
    return f"{counted(tasks)} and {counted(len(tally.schedules), 'schedule')}"


def _parts(tally: Tally) -> list[Part]:
    """Tables of the rows that are imported, of the options that they lose, and of the rows that stay."""
    tables = (
        (("function", "handler", "queue", "tasks"), [(*names, count) for names, count in tally.tasks.items()]),
        (("schedules",), [(name,) for name in tally.schedules]),
        (("function", "option without counterpart", "rows"), [(*names, n) for names, n in tally.options.items()]),
        (
            ("function", "not carried over, because", "rows", "for example"),
            [(*left, count, tally.examples[left]) for left, count in tally.left.items()],
        ),
    )
    return [Table(headings, sorted(rows, key=str)) for headings, rows in tables if rows]


def _report(tally: Tally, options: Options) -> Report:
    left = [
        {"function": left.function, "reason": left.reason, "count": count, "example": tally.examples[left]}
        for left, count in tally.left.items()
    ]
    tasks = [{"function": old, "task_path": new, "queue": q, "count": n} for (old, new, q), n in tally.tasks.items()]
    data: dict[str, Any] = {
        "imported": tally.tasks.total() - tally.duplicates,
        "schedules": tally.schedules,
        "already": tally.already,
        "duplicates": tally.duplicates,
        "tasks": tasks,
        "options": [{"function": name, "option": option, "count": n} for (name, option), n in tally.options.items()],
        "left": left,
    }
    text = [f"{_sum(tally)} {said('imported', options)}."]
    text += [f"{counted(tally.already, 'row')} imported earlier."] if tally.already else []
    text += [f"{counted(tally.duplicates)} left out: another has its unique key."] if tally.duplicates else []
    stays = tally.left.total()
    parts = _parts(tally) if options["dry_run"] or not tally.imported else []
    return Report(data=data, text=[*parts, "\n".join(text)], failure=f"{counted(stays, 'row')} left." if stays else "")
