"""`edit_tasks`: another queue, priority or time for waiting tasks."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, UsageError, operator, types
from tasks.commands.selection import add_filters, read_filter, report_of


class Command(OperatorCommand):
    help = (
        "Move READY tasks to another queue, priority or time. Tasks that a worker holds or that are finished are "
        "refused. Filters without --status mean READY tasks. Exit status 1 when some were refused; --json says why."
    )

    def add_options(self, parser: CommandParser) -> None:
        add_filters(parser)
        parser.add_argument("--set-queue", type=types.destination, metavar="Q", help="The queue to move them to.")
        parser.add_argument("--set-priority", type=types.priority, metavar="N", help="-100 to 100; 100 runs first.")
        parser.add_argument(
            "--set-run-after",
            type=types.moment,
            metavar="ISO",
            help="When they may run, like 2030-01-31T03:00:00+02:00, or now; without an offset in the project's "
            "TIME_ZONE.",
        )

    def run(self, options: Options) -> Report:
        if all(options[name] is None for name in ("set_queue", "set_priority", "set_run_after")):
            raise UsageError("What to change? Add --set-queue, --set-priority or --set-run-after.")
        chosen = read_filter(options, default_status="READY")
        with self.chunks(options) as progress:
            result = operations.edit(
                chosen,
                operator(),
                queue_name=options["set_queue"],
                priority=options["set_priority"],
                run_after=options["set_run_after"],
                reason=options["reason"],
                dry_run=options["dry_run"],
                progress=progress,
            )
        return report_of(result, "edited", options)
