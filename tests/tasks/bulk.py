"""Bulk runs asked for by a person."""

from tasks.models import BulkRun
from tasks.operations import bulk_runs
from tasks.operations.bulk import Settings, highest_id
from tasks.operations.filters import ListFilter
from tasks.support.audit import Who

ANNA = Who("anna", "page")
FAILED = ListFilter(statuses=("FAILED",))


def ask(action: str = "requeue", chosen: ListFilter = FAILED, *, token: str = "", upto: int = 0, **settings) -> BulkRun:
    asked = bulk_runs.ask(
        action, chosen, upto or highest_id(), Settings(**settings), ANNA, token or bulk_runs.new_token()
    )
    return BulkRun.objects.get(pk=asked.run_id)
