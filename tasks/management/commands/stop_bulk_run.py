"""`stop_bulk_run`: end a bulk run after the current chunk."""

from typing import Any

from django.core.management.base import CommandError

from tasks.commands import ChangeCommand, types
from tasks.models import BulkRun
from tasks.operations import bulk
from tasks.support.audit import Who


class Command(ChangeCommand):
    help = (
        "End a bulk run after the chunk in hand; what is done stays done. Its page names the id. The command does not "
        "wait for the end."
    )
    examples = ("12", '12 --reason "too fast"')
    argument = ("id", types.run_id, "The bulk run's id.")
    keys = ("run", "requested")
    texts = ("Bulk run {} ends after the chunk in hand.", "Bulk run {} is over or was asked before; nothing changed.")

    def change(self, target: int, who: Who, **audit: Any) -> bool:
        run = BulkRun.objects.filter(pk=target).first()
        if run is None:
            raise CommandError(f"No bulk run has the id {target}: it was pruned, or the number is wrong.")
        return bulk.stop(run, who, **audit)
