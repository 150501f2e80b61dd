"""`cancel_tasks`: cancel waiting and running tasks."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, operator, types
from tasks.commands.output import counted
from tasks.commands.selection import add_filters, read_filter, report_of


class Command(OperatorCommand):
    help = (
        "Cancel tasks. What no live worker holds is CANCELLED at once. What runs is ended by its worker, which this "
        "command waits for; the rest is told as `cancelling` and is still being ended. Filters without --status mean "
        "READY tasks. Exit status 1 when some were refused; --json says why."
    )

    def add_options(self, parser: CommandParser) -> None:
        add_filters(parser)
        parser.add_argument(
            "--wait",
            type=types.seconds,
            default=10.0,
            metavar="SECONDS",
            help="How long to wait for workers to end what runs (default 10).",
        )

    def run(self, options: Options) -> Report:
        who, reason = operator(), options["reason"]
        chosen = read_filter(options, default_status="READY")
        with self.chunks(options) as progress:
            result = operations.cancel(chosen, who, reason=reason, dry_run=options["dry_run"], progress=progress)
            if not options["dry_run"]:
                operations.await_cancelled(result, who, seconds=options["wait"], reason=reason, progress=progress)
        report = report_of(result, "cancelled", options, cancelling=result.asked)
        if result.asked:
            report.text += f" {counted(len(result.asked))} asked to end and still running."
        return report
