"""`pause_queue`, `resume_queue`, `configure_queue`, `stop_worker`: said once, told to workers, kept by the audit."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from tasks.models import Intervention, Queue, Task, Worker
from tests.commands import run, run_process
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db


def audit():
    return list(Intervention.objects.order_by("pk").values_list("action", "target", "reason"))


def test_pausing_and_resuming():
    outcome = run("pause_queue", "payouts", "--json", "--reason", "bank is down")
    queue = Queue.objects.get()
    assert (outcome.status, outcome.data) == (0, {"queue": "payouts", "paused": True, "changed": True})
    assert (queue.paused, queue.paused_at is not None, "@" in queue.paused_by) == (True, True, True)
    outcome = run("resume_queue", "payouts", "--json")
    queue.refresh_from_db()
    assert (outcome.data["paused"], outcome.data["changed"], queue.paused, queue.paused_by) == (False, True, False, "")
    assert audit() == [("pause", "queue:payouts", "bank is down"), ("resume", "queue:payouts", "")]


def test_doing_it_again_is_nothing_to_do():
    run("pause_queue", "payouts")
    first = Queue.objects.get()
    outcome = run("pause_queue", "payouts", "--json")
    assert (outcome.status, outcome.data["changed"]) == (0, False)
    assert Queue.objects.get().paused_at == first.paused_at
    run("resume_queue", "payouts")
    for name in ("payouts", "never-paused"):
        assert run("resume_queue", name, "--json").data["changed"] is False
    assert len(audit()) == 2


def test_configuring_keeps_the_pause():
    run("pause_queue", "payouts")
    outcome = run("configure_queue", "payouts", "--recovery", "ask", "--json")
    assert outcome.data == {"queue": "payouts", "recovery": "ask", "changed": True}
    assert (Queue.objects.get().recovery, Queue.objects.get().paused) == ("ask", True)
    assert audit()[-1] == ("configure recovery=ask", "queue:payouts", "")


def test_automatic_is_what_a_queue_is_without_a_row():
    assert run("configure_queue", "new", "--recovery", "automatic", "--json").data["changed"] is False
    assert not Queue.objects.exists()
    run("configure_queue", "new", "--recovery", "ask")
    assert run("configure_queue", "new", "--recovery", "automatic", "--json").data["changed"] is True
    assert Queue.objects.get().recovery == "automatic"


def test_an_objective_is_set_kept_by_the_audit_checked_and_taken_away():
    """`queue_status` is unhealthy past it, and the database refuses one that is no wait."""
    assert run("configure_queue", "mail", "--objective", "none", "--json").data["changed"] is False
    assert not Queue.objects.exists()
    outcome = run("configure_queue", "mail", "--objective", "5m", "--reason", "promised", "--json")
    assert outcome.data == {"queue": "mail", "objective": "5m", "changed": True}
    assert run("configure_queue", "mail", "--objective", "5m").stdout == (
        "Objective of queue mail: 5m as before; nothing changed.\n"
    )
    rows.ready(queue_name="mail", run_after=timezone.now() - timedelta(minutes=4))
    outcome = run("queue_status", "--json")
    assert (outcome.status, outcome.data["queues"][0]["objective_seconds"]) == (0, 300.0)
    Task.objects.update(run_after=timezone.now() - timedelta(minutes=6))
    outcome = run("queue_status", "--json")
    assert outcome.status == 3
    assert "its objective is 300 s" in outcome.stderr
    with pytest.raises(IntegrityError), transaction.atomic():
        Queue.objects.update(objective=timedelta(0))
    run("configure_queue", "mail", "--objective", "none")
    assert run("queue_status", "--json").status == 0
    assert audit() == [
        ("configure objective=5m", "queue:mail", "promised"), ("configure objective=none", "queue:mail", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("argv", [("pause_queue", ""), ("resume_queue",), ("configure_queue", "a"), ("stop_worker",)])
def test_usage_errors(argv):
    assert run(*argv).status == 2


def test_a_recovery_that_does_not_exist_is_a_usage_error():
    assert run("configure_queue", "a", "--recovery", "never").status == 2


def test_a_dry_run_changes_nothing():
    assert run("pause_queue", "payouts", "--dry-run", "--json").data["changed"] is True
    assert not Queue.objects.exists()
    assert not Intervention.objects.exists()


class TestStopWorker:
    def test_an_unknown_worker(self):
        outcome = run("stop_worker", "w1")
        assert outcome.status == 1
        assert "No worker has the id 'w1'" in outcome.stderr

    def test_a_worker_that_has_stopped_is_nothing_to_do(self):
        outcome = run("stop_worker", rows.dead_worker(), "--json")
        assert (outcome.status, outcome.data["requested"]) == (0, False)

    @pytest.mark.django_db(transaction=True)
    def test_a_live_worker_is_asked_once_and_its_supervisor_told(self):
        with rows.living_worker() as worker, session(autocommit=True) as listener:
            listener.execute("LISTEN rowlock_control_public")
            outcome = run("stop_worker", worker, "--json", "--reason", "kernel update")
            assert list(listener.notifies(timeout=5, stop_after=1))
            assert run("stop_worker", worker, "--json").data["requested"] is False
        assert (outcome.status, outcome.data) == (0, {"worker": worker, "requested": True})
        assert Worker.objects.get().stop_requested_at is not None
        assert audit() == [("stop", f"worker:{worker}", "kernel update")]

    def test_a_dead_worker_cannot_hear(self):
        Worker.objects.create(id="w1", hostname="h", pid=1, heartbeat_at="2026-01-01T00:00:00Z", presence_epoch="old")
        outcome = run("stop_worker", "w1")
        assert outcome.status == 1
        assert "recover_tasks" in outcome.stderr


@pytest.mark.django_db(transaction=True)
def test_workers_are_woken_when_a_queue_is_resumed():
    Queue.objects.create(name="payouts", paused=True)
    with session(autocommit=True) as listener:
        listener.execute("LISTEN rowlock_public")
        run("resume_queue", "payouts")
        assert list(listener.notifies(timeout=5, stop_after=1))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("command", ["pause_queue", "resume_queue"])
def test_a_queue_that_somebody_holds_is_not_waited_for_for_long(command):
    Queue.objects.create(name="payouts", paused=command == "resume_queue")
    with session() as other:
        other.execute("SELECT FROM tasks_queue FOR UPDATE")
        outcome = run_process(command, "payouts", "--json")
    assert outcome.status == 1
    assert "nothing waits longer than 2 s" in outcome.data["error"]
