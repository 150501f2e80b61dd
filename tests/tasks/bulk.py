"""Bulk runs asked for by a person."""

from tasks.audit import Who
from tasks.bulk import forms, runs
from tasks.bulk.instruction import Settings
from tasks.bulk.models import BulkRun
from tasks.bulk.tally import highest_id
from tasks.list_filter import ListFilter

ANNA = Who("anna", "page")
FAILED = ListFilter(statuses=("FAILED",))


def ask(action: str = "requeue", chosen: ListFilter = FAILED, *, token: str = "", upto: int = 0, **settings) -> BulkRun:
    asked = runs.ask(action, chosen, upto or highest_id(), Settings(**settings), ANNA, token or forms.new_token())
    return BulkRun.objects.get(pk=asked.run_id)
