"""`cancel_tasks`: cancel waiting and running tasks."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import Options, Report, operator, types
from tasks.commands.output import counted
from tasks.commands.selection import TaskCommand, report_of
from tasks.operations import Progress, Result


class Command(TaskCommand):
    help = (
        "Cancel tasks. A task that no live worker holds is CANCELLED at once. Workers end the tasks that they run, and "
        "the command waits for them; `cancelling` counts those that still run. Filters without --status mean READY "
        "tasks. Exit status 1 when some were refused; --json says why."
    )
    examples = ('4711 --reason "wrong customer"', "--queue mail --status READY --dry-run")
    verb = operations.Cancel
    participle = "cancelled"
    default_statuses = ("READY",)

    def add_settings(self, parser: CommandParser) -> None:
        text = "How long to wait for workers to end what runs (default 10)."
        parser.add_argument("--wait", type=types.seconds, default=10.0, metavar="SECONDS", help=text)

    def report(self, result: Result, options: Options, progress: Progress) -> Report:
        seconds, reason = options["wait"], options["reason"]
        if not options["dry_run"]:
            operations.await_cancelled(result, operator(), seconds=seconds, reason=reason, progress=progress)
        report = report_of(result, self.participle, options, cancelling=result.asked)
        if result.asked:
            report.text = f"{report.text} {counted(len(result.asked))} asked to end and still running."
        return report
