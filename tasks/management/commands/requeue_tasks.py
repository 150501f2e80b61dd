"""`requeue_tasks`: run FAILED, CANCELLED or stale PROCESSING tasks again."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, UsageError, operator, types
from tasks.commands.selection import add_filters, read_filter, report_of
from tasks.operations.filters import TaskFilter
from tasks.operations.requeue import AT_ONCE, Spread


class Command(OperatorCommand):
    help = (
        "Make FAILED, CANCELLED or stale PROCESSING tasks READY, with a fresh allowance of attempts. "
        "Filters without --status mean FAILED tasks. Exit status 1 when some were refused; --json says why."
    )

    def add_options(self, parser: CommandParser) -> None:
        add_filters(parser)
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

    def run(self, options: Options) -> Report:
        chosen = read_filter(options, default_status="FAILED")
        if options["force"] and not options["reason"].strip():
            raise UsageError("--force takes tasks from live workers, so say why: add --reason TEXT.")
        with self.chunks(options) as progress:
            result = operations.requeue(
                chosen,
                operator(),
                reason=options["reason"],
                force=options["force"],
                spread=self.spread(chosen, options),
                dry_run=options["dry_run"],
                progress=progress,
            )
        return report_of(result, "requeued", options)

    def spread(self, chosen: TaskFilter, options: Options) -> Spread:
        """Spread evenly over the tasks that match now."""
        if options["spread"] is None:
            return AT_ONCE
        return Spread(options["spread"].total_seconds(), of=len(chosen.selected_ids()))
