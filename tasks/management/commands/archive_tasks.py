"""`archive_tasks`: move finished tasks of some age to the archive, and drop its old months."""

from argparse import ArgumentTypeError
from datetime import date

from django.core.management.base import CommandError, CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, UsageError, audited, operator, types
from tasks.commands.output import counted, said
from tasks.exceptions import LockHeld
from tasks.locking import lock
from tasks.models import FINISHED
from tasks.operations.archive import LEASE_SECONDS, LOCK
from tasks.schedule.runner import HELD_ELSEWHERE


def month(written: str) -> date:
    """The first day of a month."""
    try:
        return date.fromisoformat(f"{written}-01")
    except ValueError:
        raise ArgumentTypeError(f"{written!a} is not a month: write it like 2026-11.") from None


class Command(OperatorCommand):
    help = (
        "Move finished tasks of some age, with their attempts and logs, to the table tasks_archive, where pages and "
        "show_task find them. It is partitioned by the month in which they finished, in UTC. --drop-before drops whole "
        "months at once, however large. Works in chunks beside workers, one at a time (exit status 75). After a kill, "
        "start it again."
    )
    examples = ("--older-than 7d", "--older-than 30d --drop-before 2026-01 --dry-run")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--older-than", type=types.duration, metavar="D", help="Finished ago, like 7d, 12h, 2w.")
        parser.add_argument(
            "--status",
            action="append",
            type=str.upper,
            choices=[str(status) for status in FINISHED],
            help="Only tasks that finished so; may be repeated. Default: all finished ones.",
        )
        parser.add_argument(
            "--drop-before", type=month, metavar="YYYY-MM", help="Drop the archive's months before this one."
        )

    def run(self, options: Options) -> Report:
        if options["older_than"] is None and options["drop_before"] is None:
            raise UsageError("Archive which tasks? Give --older-than, like 30d, or --drop-before, like 2026-01.")
        try:
            # Should the lock be lost, two at once harm nothing: each row is moved by the statement that deletes it.
            with lock(LOCK, ttl=LEASE_SECONDS):
                return self._archive(options)
        except LockHeld as error:
            raise CommandError(str(error), returncode=HELD_ELSEWHERE) from error

    def _archive(self, options: Options) -> Report:
        archived, dropped = 0, []
        if options["older_than"] is not None:
            with self.chunks(options) as progress:
                statuses = options["status"] or FINISHED
                archived = operations.archive_tasks(
                    options["older_than"], operator(), statuses=statuses, progress=progress, **audited(options)
                )
        if options["drop_before"] is not None and not self.signals.received:
            dropped = operations.drop_months(options["drop_before"], operator(), **audited(options))
        text = f"{counted(archived)} {said('archived', options)}."
        if dropped:
            text += f"\n{counted(len(dropped), 'month')} {said('dropped', options)}: {', '.join(dropped)}."
        return Report(data={"archived": archived, "dropped": dropped}, text=text)
