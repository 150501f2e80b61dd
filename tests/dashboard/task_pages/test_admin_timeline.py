"""The timeline of one task's page: a life in order, and who did what."""

import re

import pytest
from django.db import connection
from django.utils import timezone

from tasks import operations
from tasks.models import Attempt, Intervention, RefusedWrite, Task, Worker
from tasks.queue import release
from tasks.support import audit
from tasks.support.audit import Who
from tasks.testing import run_all
from tests.dashboard.task_pages.test_admin_detail import page_of
from tests.people import client_of
from tests.tasks import handlers, rows
from tests.tasks.claiming import claim

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer():
    return client_of("Viewers")


def timeline_of(client, task) -> list[str]:
    text = page_of(client, task)
    timeline = text[text.index('<ol class="timeline">') : text.index("</ol>", text.index('<ol class="timeline">'))]
    return re.findall(r"<strong>(.*?)</strong>(?: <span class=\"detail\">(attempt \d))?", timeline)


def test_the_timeline_ends_with_the_loss_of_the_worker_that_holds_the_task(viewer):
    began = {"created_at": "2026-01-01T00:00Z", "started_at": "2026-01-01T00:01Z"}
    task = rows.processing(rows.dead_worker(), **began)
    assert [label for label, _ in timeline_of(viewer, task)] == ["Enqueued", "Claimed", "Worker lost"]
    with rows.living_worker() as alive:
        assert "Worker lost" not in page_of(viewer, rows.processing(alive, **began))


def test_the_timeline_tells_a_life_in_order(viewer):
    task = rows.failed(created_at="2026-01-01T00:00Z", finished_at="2026-01-01T00:05Z")
    attempt = {"task": task, "number": 1, "worker_id": "w7f", "started_at": "2026-01-01T00:01Z"}
    Attempt.objects.create(**attempt, outcome="abandoned", finished_at="2026-01-01T00:02Z")
    RefusedWrite.objects.create(
        task_id=task.pk,
        worker_id="w7f",
        expected_version=2,
        actual_version=3,
        intent="complete",
        at="2026-01-01T00:03Z",
    )
    Intervention.objects.create(
        at="2026-01-01T00:04Z", actor="anna", source="page", action="requeue", target=audit.task(task.pk), reason="card"
    )
    text = page_of(viewer, task)
    timeline = text[text.index('<ol class="timeline">') : text.index("</ol>", text.index('<ol class="timeline">'))]
    labels = ["Enqueued", "Started", "Abandoned", "Late write refused", "requeue", "Failed"]
    places = [timeline.index(f"<strong>{label}</strong>") for label in labels]
    assert places == sorted(places)
    assert "worker w7f meant to complete v2, and found v3" in timeline
    assert "by anna (page): card" in timeline


def test_the_timeline_tells_which_worker_does_not_know_the_function(viewer):
    rows.ready()
    [claimed] = claim(worker_id="w7f")
    release.release(connection, "w7f", [(claimed.id, claimed.claimed_at())], parked_for=release.UNKNOWN)
    task = Task.objects.get()
    assert [label for label, _ in timeline_of(viewer, task)] == ["Enqueued", "Given back", "Due"]
    assert "worker w7f does not know the function; no attempt was spent" in page_of(viewer, task)


def test_a_running_task_tells_when_it_was_claimed_and_started(viewer):
    task = rows.processing("w7f")
    Worker.objects.create(id="w7f", hostname="host", pid=41, current_task_id=task.pk, current_since=timezone.now())
    text = page_of(viewer, task)
    assert text.index("<strong>Claimed</strong>") < text.index("<strong>Started</strong>")
    assert "w7f (host, pid 41)" in text


@pytest.mark.django_db(transaction=True)
def test_a_failed_attempt_comes_before_the_failure_that_it_led_to(viewer):
    """Both are written in one transaction, the attempt by the later statement."""
    handlers.fail_once.enqueue()
    run_all()
    task = Task.objects.get()
    assert task.status == "FAILED"
    assert timeline_of(viewer, task)[-2:] == [("Failed", "attempt 1"), ("Failed", "")]


def test_what_a_person_did_comes_before_what_came_of_it(viewer):
    task = rows.ready()
    operations.cancel([task.pk], Who("anna", "command"))
    assert [label for label, _ in timeline_of(viewer, task)] == ["Enqueued", "cancel", "Cancelled"]
