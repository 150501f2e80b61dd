"""`quarantine_tasks`: move harmful tasks into a paused queue, where they wait for a person."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import Options, Report
from tasks.commands.selection import TaskCommand


class Command(TaskCommand):
    help = (
        "Move READY and FAILED tasks into the queue `quarantine`, which is paused; FAILED ones are READY there, with a "
        "fresh allowance of attempts. With --undo, move tasks of that queue back to where they came from. Filters "
        "without --status mean READY and FAILED tasks. Exit status 1 when some were refused; --json says why."
    )
    examples = ("--task shop.tasks.charge_card", "--task shop.tasks.charge_card --undo")

    def add_settings(self, parser: CommandParser) -> None:
        parser.add_argument("--undo", action="store_true", help="Move them back to the queue that each came from.")

    def run(self, options: Options) -> Report:
        self.verb = operations.PutBack if options["undo"] else operations.Quarantine
        self.participle = "returned" if options["undo"] else "quarantined"
        self.default_statuses = tuple(map(str, self.verb.statuses))
        return super().run(options)
