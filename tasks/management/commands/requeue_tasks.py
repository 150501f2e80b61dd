"""`requeue_tasks`: run FAILED, CANCELLED or stale PROCESSING tasks again."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import Options, UsageError, types
from tasks.commands.selection import TaskCommand
from tasks.operations import Settings, Spread
from tasks.operations.filters import TaskFilter
from tasks.operations.verb import AT_ONCE


class Command(TaskCommand):
    help = (
        "Make FAILED, CANCELLED or stale PROCESSING tasks READY, with a fresh allowance of attempts. "
        "Filters without --status mean FAILED tasks. Exit status 1 when some were refused; --json says why."
    )
    verb = operations.Requeue
    participle = "requeued"
    default_statuses = ("FAILED",)

    def add_settings(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--force",
            action="store_true",
            help="Take tasks from live workers too: their effect may happen twice. Needs --reason.",
        )
        parser.add_argument(
            "--spread",
            type=types.duration,
            metavar="D",
            help="Make them due one by one, evenly over this time, like 10m. Default: all at once.",
        )

    def settings(self, options: Options) -> Settings:
        if options["force"] and not options["reason"].strip():
            raise UsageError("--force takes tasks from live workers, so say why: add --reason TEXT.")
        return Settings(reason=options["reason"], force=options["force"])

    def spread(self, chosen: TaskFilter, options: Options) -> Spread:
        """Spread evenly over the tasks that match now."""
        if options["spread"] is None:
            return AT_ONCE
        return Spread(options["spread"].total_seconds(), of=len(chosen.selected_ids()))
