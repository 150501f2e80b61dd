"""Bulk runs asked for by a person."""

from tasks.models import BulkRun
from tasks.operations import Settings, bulk, tokens
from tasks.operations.bulk import highest_id
from tasks.operations.filters import TaskFilter
from tasks.support.audit import Who

ANNA = Who("anna", "page")
FAILED = TaskFilter(statuses=("FAILED",))


def ask(action: str = "requeue", chosen: TaskFilter = FAILED, *, token: str = "", upto: int = 0, **settings) -> BulkRun:
    run_id = bulk.request(action, chosen, upto or highest_id(), Settings(**settings), ANNA, token or tokens.new_token())
    return BulkRun.objects.get(pk=run_id)
