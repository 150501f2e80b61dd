"""`requeue_tasks`: run FAILED, CANCELLED or stale PROCESSING tasks again."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import Options, Report, UsageError, types
from tasks.commands.selection import TaskCommand


class Command(TaskCommand):
    help = (
        "Make FAILED, CANCELLED or stale PROCESSING tasks READY, with a fresh allowance of attempts. "
        "Filters without --status mean FAILED tasks. Exit status 1 when some were refused; --json says why."
    )
    examples = ("4711 4712", "--status FAILED --error CardDeclined --spread 10m")
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
            self.verb.options["spread_minutes"],
            dest="spread_minutes",
            type=lambda text: types.duration(text).total_seconds() / 60,
            metavar="D",
            help="Make them due one by one, evenly over this time, like 10m. Default: all at once.",
        )

    def run(self, options: Options) -> Report:
        if options["force"] and not options["reason"]:
            raise UsageError("--force takes tasks from live workers, so say why: add --reason TEXT.")
        return super().run(options)
