"""`stop_bulk_run`: end a bulk run after the current chunk."""

from django.core.management.base import CommandError, CommandParser

from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.models import BulkRun
from tasks.operations import bulk


class Command(OperatorCommand):
    help = (
        "End a bulk run after the chunk in hand; what is done stays done. Its page names the id. The command does not "
        "wait for the end."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=types.run_id, metavar="ID", help="The bulk run's id.")

    def run(self, options: Options) -> Report:
        run = BulkRun.objects.filter(pk=options["id"]).first()
        if run is None:
            raise CommandError(f"No bulk run has the id {options['id']}: it was pruned, or the number is wrong.")
        requested = bulk.stop(run, operator(), **audited(options))
        text = (
            f"Bulk run {run.pk} ends after the chunk in hand."
            if requested
            else f"Bulk run {run.pk} is over or was asked before; nothing changed."
        )
        return Report(data={"run": run.pk, "requested": requested}, text=text)
