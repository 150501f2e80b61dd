"""`check_tasks`: find what the database has lost, for instance in a failover."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice

from django.core.management.base import CommandError, CommandParser
from django.db import connection
from django.utils import timezone

from tasks.commands import OperatorCommand, Options, Report, UsageError, types
from tasks.commands.base import UNHEALTHY
from tasks.commands.output import counted
from tasks.diagnosis import loss
from tasks.diagnosis.loss import Enqueued

CHUNK = 1000


class Command(OperatorCommand):
    help = (
        "Find what the database has lost, for instance in a failover to a standby that lacked the last commits: "
        "claims that workers held and no row has and, with --enqueued, tasks whose enqueuers were told their ids. "
        "There may be more that nobody can tell. Exit status 3 when something is missing."
    )
    examples = ("--since 1h", "--enqueued ids.txt --json")
    changes_data = False

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--since",
            type=types.duration,
            metavar="D",
            help="Only claims that were reported within this time, like 1h.",
        )
        text = (
            "Look for the tasks in this file too (`-`: stdin), a line each: the id and, because another task may have "
            "got it since, the `enqueued_at` of its result."
        )
        parser.add_argument("--enqueued", metavar="FILE", help=text)

    def run(self, options: Options) -> Report:
        claims = loss.lost_claims(connection, options["since"])
        number, missing = self._look_for(options) if options["enqueued"] else (None, [])
        texts = [f"Claims that no row has: {len(claims)}."]
        if number is not None:
            texts.append(f"Tasks that are neither in the queue nor in the archive: {len(missing)} of {number}.")
        problems = [
            f"Task {claim['id']}: worker {claim['worker']} held version {claim['held']}, "
            + ("but its row was gone." if claim["found"] is None else f"but its row had version {claim['found']}.")
            for claim in claims
        ]
        for task in missing:
            at = f", enqueued at {timezone.localtime(task.at).isoformat()}," if task.at else ""
            problems.append(f"Task {task.id}{at} is missing: lost, or pruned.")
        failures = []
        if claims:
            failures.append(f"No row has {counted(len(claims), 'claim')}: commits were lost, or rows deleted.")
        if missing:
            failures.append(f"Of the list {counted(len(missing))} cannot be found: enqueue again what was not pruned.")
        return Report(
            data={
                "claims": [{**claim, "at": claim["at"].isoformat()} for claim in claims],
                "enqueued": number,
                "missing": [{"id": task.id, "enqueued_at": task.at and task.at.isoformat()} for task in missing],
            },
            text="\n".join(texts),
            problems=problems,
            failure=" ".join(failures),
            exit_status=UNHEALTHY,
        )

    def _look_for(self, options: Options) -> tuple[int, list[Enqueued]]:
        """Return how many tasks the file names, and those that are missing."""
        number, missing = 0, []
        with opened(options["enqueued"]) as lines, self.chunks(options) as progress:
            tasks = read(lines)
            while chunk := list(islice(tasks, CHUNK)):
                missing += loss.missing(connection, chunk)
                number += len(chunk)
                if not progress(number, None):
                    break
        return number, missing


@contextmanager
def opened(path: str) -> Iterator[Iterable[str]]:
    """Yield the lines of the file. Raises CommandError if it cannot be read."""
    try:
        with nullcontext(sys.stdin) if path == "-" else open(path, encoding="utf-8") as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path!a} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def read(lines: Iterable[str]) -> Iterator[Enqueued]:
    """Yield the tasks that the lines name. Raises UsageError for a line that names none."""
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").split(maxsplit=1)
        if not words:
            continue
        try:
            yield Enqueued(types.task_id(words[0]), types.moment(words[1].strip()) if len(words) > 1 else None)
        except ArgumentTypeError as error:
            raise UsageError(f"Line {number} of the list: {error}") from error
