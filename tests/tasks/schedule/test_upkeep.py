"""Upkeep that one switches on: the tasks behind it do what the commands do, and ticks themselves grow old."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tasks import testing
from tasks.models import Attempt, Intervention, Task, Tick
from tasks.operations import schedules
from tasks.support.audit import Who
from tests.commands import run
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)  # in a transaction they take a session of their own
WHO = Who("anna", "page")
OLD = timezone.now() - timedelta(days=400)


def run_upkeep(name: str) -> Task:
    """Switch it on, run it once, and give its task."""
    schedules.switch_on_maintenance(name, WHO)
    task_id = schedules.run_now(name, WHO)
    testing.run_due()
    return Task.objects.get(pk=task_id)


def test_old_tasks_and_history_go():
    rows.completed(created_at=OLD, finished_at=OLD)
    recent = rows.failed()
    Attempt.objects.create(task=recent, number=1, worker_id="w", outcome="failed", finished_at=OLD)
    pruned = run_upkeep("prune-tasks")
    assert (pruned.status, pruned.return_value, pruned.queue_name) == ("COMPLETED", {"deleted": 1}, "rowlock")
    assert run_upkeep("prune-history").return_value["attempts"] == 1
    audit = Intervention.objects.filter(action__startswith="prune").order_by("id").values_list("actor", "source")
    assert list(audit) == [("schedule prune-tasks", "command"), ("schedule prune-history", "command")]


def test_old_ticks_go_but_for_the_latest_of_each_schedule():
    for name, ages in (("a", (400, 399, 1)), ("b", (400, 399))):
        for age in ages:
            at = timezone.now() - timedelta(days=age)
            Tick.objects.create(schedule_name=name, at=at, made_at=at, outcome="missed")
    assert run("prune_history", "--older-than", "30d", "--json").data["tables"]["ticks"] == 3
    assert list(Tick.objects.order_by("at").values_list("schedule_name", flat=True)) == ["b", "a"]
