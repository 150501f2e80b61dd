"""`prune_tasks`: delete finished tasks of some age."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.commands.output import counted, said
from tasks.models import FINISHED


class Command(OperatorCommand):
    help = (
        "Delete tasks that finished some time ago, with their attempts, in chunks that hold no lock for long. "
        "Unfinished tasks are never deleted. Safe to run beside workers and from cron."
    )
    examples = ("--older-than 7d", "--older-than 30d --status FAILED --dry-run")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--older-than", required=True, type=types.duration, metavar="D", help="Like 7d, 12h, 2w.")
        parser.add_argument(
            "--status",
            action="append",
            type=str.upper,
            choices=[str(status) for status in FINISHED],
            help="Only tasks that finished so; may be repeated. Default: all finished ones.",
        )

    def run(self, options: Options) -> Report:
        with self.chunks(options) as progress:
            statuses = options["status"] or FINISHED
            deleted = operations.prune_tasks(
                options["older_than"], operator(), statuses=statuses, progress=progress, **audited(options)
            )
        return Report(data={"deleted": deleted}, text=f"{counted(deleted)} {said('deleted', options)}.")
