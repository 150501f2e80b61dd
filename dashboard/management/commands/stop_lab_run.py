"""`stop_lab_run`: ask a run of the lab to end."""

from django.core.management.base import CommandError, CommandParser

from dashboard.lab import requests
from dashboard.models import LabRun
from tasks.commands import OperatorCommand, Options, Report, operator, types


class Command(OperatorCommand):
    help = (
        "Ask a run that was started on the lab's page to end; what it has done so far is measured. Its page names the "
        "id. A run of `run_pattern` is ended by Ctrl-C."
    )
    examples = ("12", '12 --reason "wrong numbers"')

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=types.run_id, metavar="ID", help="The lab run's id.")

    def run(self, options: Options) -> Report:
        run = LabRun.objects.filter(pk=options["id"]).first()
        if run is None:
            raise CommandError(f"No lab run has the id {options['id']}.")
        requested = requests.stop(run, operator(), reason=options["reason"], dry_run=options["dry_run"])
        text = (
            f"Lab run {run.pk} is asked to end."
            if requested
            else f"Lab run {run.pk} is over or was asked before; nothing changed."
        )
        return Report(data={"run": run.pk, "requested": requested}, text=text)
