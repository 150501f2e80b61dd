"""`stop_bulk_run`: a run is ended once, with a reason, and never half."""

import pytest

from tasks.models import BulkRun, Intervention, Task
from tests.commands import run
from tests.sessions import session
from tests.tasks import rows
from tests.tasks.bulk import ask

pytestmark = pytest.mark.django_db


def test_it_is_stopped_once():
    rows.failed()
    bulk = ask()
    outcome = run("stop_bulk_run", bulk.pk, "--reason", "wrong filter", "--json")
    assert (outcome.status, outcome.data) == (0, {"run": bulk.pk, "requested": True})
    again = run("stop_bulk_run", bulk.pk)
    assert (again.status, again.stdout) == (0, f"Bulk run {bulk.pk} is over or was asked before; nothing changed.\n")
    bulk.refresh_from_db()
    assert bulk.finished_at is not None
    assert Task.objects.get(pk=bulk.task_id).status == "CANCELLED"
    assert Intervention.objects.filter(action=f"stop bulk run {bulk.pk}", reason="wrong filter").count() == 1


def test_a_dry_run_changes_nothing():
    rows.failed()
    bulk = ask()
    assert run("stop_bulk_run", bulk.pk, "--dry-run", "--json").data["requested"] is True
    assert BulkRun.objects.get(stop_requested_at=None, finished_at=None) == bulk
    assert Task.objects.get(pk=bulk.task_id).status == "READY"
    assert not Intervention.objects.filter(action__startswith="stop").exists()


@pytest.mark.parametrize(("argv", "status", "told"), [(["9"], 1, "No bulk run has the id 9"), (["x"], 2, "from 1")])
def test_a_run_that_is_not_there(argv, status, told):
    outcome = run("stop_bulk_run", *argv)
    assert outcome.status == status
    assert told in outcome.stderr


@pytest.mark.django_db(transaction=True)
def test_a_run_that_somebody_holds_is_not_waited_for_for_long():
    rows.failed()
    bulk = ask()
    with session() as other:
        other.execute("SELECT FROM tasks_bulkrun FOR UPDATE")
        outcome = run("stop_bulk_run", bulk.pk)
    assert outcome.status == 1
    assert "nothing waits longer than 2 s" in outcome.stderr
