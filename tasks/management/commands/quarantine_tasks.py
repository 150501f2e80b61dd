"""`quarantine_tasks`: move harmful tasks into a paused queue, where they wait for a person."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, operator
from tasks.commands.selection import add_filters, read_filter, report_of


class Command(OperatorCommand):
    help = (
        "Move READY and FAILED tasks into the queue `quarantine`, which is paused; FAILED ones are READY there, with a "
        "fresh allowance of attempts. With --undo, move tasks of that queue back to where they came from. Filters "
        "without --status mean READY and FAILED tasks. Exit status 1 when some were refused; --json says why."
    )

    def add_options(self, parser: CommandParser) -> None:
        add_filters(parser)
        parser.add_argument("--undo", action="store_true", help="Move them back to the queue that each came from.")

    def run(self, options: Options) -> Report:
        act = operations.put_back if options["undo"] else operations.quarantine
        chosen = read_filter(options, default_status="READY", more_statuses=() if options["undo"] else ("FAILED",))
        with self.chunks(options) as progress:
            result = act(chosen, operator(), reason=options["reason"], dry_run=options["dry_run"], progress=progress)
        return report_of(result, "returned" if options["undo"] else "quarantined", options)
