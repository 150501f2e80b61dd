"""`edit_tasks`: another queue, priority or time for waiting tasks."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import Options, UsageError, types
from tasks.commands.selection import TaskCommand
from tasks.operations import Settings


class Command(TaskCommand):
    help = (
        "Move READY tasks to another queue, priority or time. Tasks that a worker holds or that are finished are "
        "refused. Filters without --status mean READY tasks. Exit status 1 when some were refused; --json says why."
    )
    verb = operations.Edit
    participle = "edited"
    default_statuses = ("READY",)

    def add_settings(self, parser: CommandParser) -> None:
        parser.add_argument("--set-queue", type=types.destination, metavar="Q", help="The queue to move them to.")
        parser.add_argument("--set-priority", type=types.priority, metavar="N", help="-100 to 100; 100 runs first.")
        parser.add_argument(
            "--set-run-after",
            type=types.moment,
            metavar="ISO",
            help="When they may run, like 2030-01-31T03:00:00+02:00, or now; without an offset in the project's "
            "TIME_ZONE.",
        )

    def settings(self, options: Options) -> Settings:
        queue_name, priority, run_after = (options[f"set_{name}"] for name in ("queue", "priority", "run_after"))
        if queue_name is None and priority is None and run_after is None:
            raise UsageError("What to change? Add --set-queue, --set-priority or --set-run-after.")
        return Settings(reason=options["reason"], queue_name=queue_name, priority=priority, run_after=run_after)
