"""Quarantine: tasks that do harm wait in a paused queue, and go back where they came from."""

import pytest

from tasks import operations
from tasks.models import Intervention, Queue, Task
from tasks.operations import Settings
from tasks.support.audit import Who
from tests.commands import run
from tests.tasks import rows
from tests.tasks.claiming import claim

pytestmark = pytest.mark.django_db
ANNA = Who("anna", "page")


def quarantine(*argv):
    return run("quarantine_tasks", "--json", *argv)


def test_ready_and_failed_tasks_wait_in_a_paused_queue():
    ready = rows.ready(queue_name="mail", run_after="2031-01-01T00:00:00Z")
    failed = rows.failed(queue_name="mail")
    outcome = quarantine("--queue", "mail", "--reason", "sends twice")
    assert outcome.data == {"quarantined": 2, "refused": [], "ids": [ready.pk, failed.pk]}
    assert Queue.objects.get(name="quarantine").paused
    for task in (ready, failed):
        moved = Task.objects.get(pk=task.pk)
        assert (moved.queue_name, moved.status, moved.finished_at) == ("quarantine", "READY", None)
    assert Task.objects.get(pk=ready.pk).run_after == ready.run_after
    assert Task.objects.get(pk=failed.pk).max_attempts == 10


def test_nothing_is_claimed_from_it():
    rows.failed()
    operations.quarantine(list(Task.objects.values_list("id", flat=True)), ANNA)
    assert claim() == []


def test_they_go_back_to_the_queue_that_each_came_from():
    tasks = [rows.failed(queue_name="mail"), rows.ready(queue_name="payouts")]
    quarantine(*(task.pk for task in tasks))
    outcome = quarantine("--queue", "quarantine", "--undo")
    assert outcome.data["returned"] == 2
    assert [Task.objects.get(pk=task.pk).queue_name for task in tasks] == ["mail", "payouts"]
    assert Intervention.objects.filter(action="put_back").count() == 2


def test_the_latest_quarantine_says_where_to():
    task = rows.ready(queue_name="mail")
    quarantine(task.pk)
    quarantine(task.pk, "--undo")
    operations.edit([task.pk], ANNA, Settings(queue_name="slow"))
    quarantine(task.pk)
    quarantine(task.pk, "--undo")
    assert Task.objects.get().queue_name == "slow"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: rows.processing("w1"), "held"),
        (rows.completed, "finished"),
        (rows.cancelled, "finished"),
        (lambda: rows.ready(queue_name="quarantine"), "quarantined"),
        (lambda: rows.failed(attempt=32_767, max_attempts=32_767), "exhausted"),
    ],
)
def test_what_cannot_wait_there_is_refused(make, code):
    task = make()
    outcome = quarantine(task.pk)
    assert (outcome.status, outcome.data["refused"][0]["reason"]) == (1, code)
    assert Task.objects.get().version == task.version


@pytest.mark.parametrize(("queue_name", "code"), [("quarantine", "no_origin"), ("mail", "not_quarantined")])
def test_what_was_not_put_there_does_not_go_back(queue_name, code):
    task = rows.ready(queue_name=queue_name)
    assert quarantine(task.pk, "--undo").data["refused"][0]["reason"] == code


def test_a_dry_run_changes_nothing():
    task = rows.failed()
    assert quarantine(task.pk, "--dry-run").data["quarantined"] == 1
    assert Task.objects.get().version == task.version
    assert not Queue.objects.exists()
