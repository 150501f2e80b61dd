"""`edit_tasks`: another queue, priority or time for waiting tasks."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import Options, Report, UsageError, types
from tasks.commands.selection import TaskCommand


class Command(TaskCommand):
    help = (
        "Move READY tasks to another queue, priority or time. Tasks that a worker holds or that are finished are "
        "refused. Filters without --status mean READY tasks. Exit status 1 when some were refused; --json says why."
    )
    examples = ("4711 --set-run-after now", "--queue mail --set-priority 10 --dry-run")
    verb = operations.Edit
    participle = "edited"
    default_statuses = ("READY",)

    def add_settings(self, parser: CommandParser) -> None:
        when = "When they may run, like 2030-01-31T03:00:00+02:00, or now; without an offset in TIME_ZONE."
        for field, kind, metavar, text in (
            ("queue_name", types.destination, "Q", "The queue to move them to."),
            ("priority", types.priority, "N", "-100 to 100; 100 runs first."),
            ("run_after", types.moment, "ISO", when),
        ):
            parser.add_argument(self.verb.options[field], dest=field, type=kind, metavar=metavar, help=text)

    def run(self, options: Options) -> Report:
        if all(options[field] is None for field in self.verb.options):
            raise UsageError("What to change? Add --set-queue, --set-priority or --set-run-after.")
        return super().run(options)
