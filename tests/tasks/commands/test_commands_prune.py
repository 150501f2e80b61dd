"""`prune_tasks` and `prune_history`: what is over goes, everything else stays."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tasks.models import (
    Attempt,
    AttemptLog,
    Bucket,
    CommandRun,
    Intervention,
    Lock,
    RefusedWrite,
    Task,
    Throughput,
    Worker,
)
from tasks.operations import prune
from tests.commands import run
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db
OLD = timezone.now() - timedelta(days=8)
LONG_AGO = {"created_at": OLD, "finished_at": OLD}


def prune_tasks(*argv):
    return run("prune_tasks", "--json", "--older-than", "7d", *argv)


def prune_history(*argv):
    return run("prune_history", "--json", "--older-than", "7d", *argv)


class TestTasks:
    def test_old_finished_tasks_go_and_everything_else_stays(self):
        for state in (rows.completed, rows.failed, rows.cancelled):
            state(**LONG_AGO)
        kept = [
            rows.completed(created_at=OLD),
            rows.ready(created_at=OLD, run_after=OLD),
            rows.processing("w", created_at=OLD, started_at=OLD),
        ]
        outcome = prune_tasks()
        assert (outcome.status, outcome.data) == (0, {"deleted": 3})
        assert list(Task.objects.order_by("pk")) == kept

    def test_a_status_narrows_it(self):
        rows.completed(**LONG_AGO)
        failed = rows.failed(**LONG_AGO)
        assert prune_tasks("--status", "completed").data == {"deleted": 1}
        assert Task.objects.get() == failed

    @pytest.mark.parametrize("argv", [(), ("--older-than", "a week"), ("--older-than", "7d", "--status", "READY")])
    def test_usage_errors(self, argv):
        assert run("prune_tasks", *argv).status == 2

    def test_the_attempts_go_with_their_task(self):
        Attempt.objects.create(task=rows.failed(**LONG_AGO), number=1, worker_id="w", outcome="failed")
        prune_tasks()
        assert not Attempt.objects.exists()

    def test_it_walks_all_windows_and_stops_at_the_first_young_one(self, monkeypatch, django_assert_max_num_queries):
        monkeypatch.setattr(prune, "WINDOW", 10)
        rows.many(35, status="COMPLETED", attempt=1, **LONG_AGO)
        rows.many(100, status="COMPLETED", attempt=1, finished_at=timezone.now())
        with django_assert_max_num_queries(30):
            assert prune_tasks().data == {"deleted": 35}

    def test_one_intervention_tells_of_it(self):
        prune_tasks()
        assert not Intervention.objects.exists()
        rows.completed(**LONG_AGO)
        rows.completed(**LONG_AGO)
        prune_tasks("--reason", "disk")
        entry = Intervention.objects.get()
        assert entry.action == "prune older_than=1w status=COMPLETED,FAILED,CANCELLED"
        assert (entry.target, entry.reason) == ("table:tasks_task", "disk")

    def test_a_dry_run_counts_and_deletes_nothing(self, monkeypatch):
        monkeypatch.setattr(prune, "WINDOW", 2)
        rows.many(5, status="COMPLETED", attempt=1, **LONG_AGO)
        assert prune_tasks("--dry-run").data == {"deleted": 5}
        assert (Task.objects.count(), Intervention.objects.count()) == (5, 0)

    @pytest.mark.django_db(transaction=True)
    def test_a_locked_row_is_left_and_not_waited_for(self):
        held, free = rows.completed(**LONG_AGO), rows.completed(**LONG_AGO)
        with session() as other:
            other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [held.pk])
            assert prune_tasks().data == {"deleted": 1}
        assert (Task.objects.get(), free.pk > held.pk) == (held, True)


class TestHistory:
    def test_attempts_go_when_their_task_is_finished(self):
        for task in (rows.ready(), rows.failed()):
            Attempt.objects.create(task=task, number=1, worker_id="w", outcome="failed", finished_at=OLD)
        Attempt.objects.create(task=rows.failed(), number=1, worker_id="w", outcome="failed")
        outcome = prune_history()
        assert (outcome.data["deleted"], outcome.data["tables"]["attempts"]) == (1, 1)
        assert Attempt.objects.filter(finished_at=OLD).get().task.status == "READY"

    def test_log_lines_go_when_their_task_is_finished_or_gone(self):
        for task_id in (rows.completed().pk, rows.ready().pk, 4711):
            AttemptLog.objects.create(task_id=task_id, number=1, at=OLD, level="INFO", message="m")
        assert prune_history().data["tables"]["lines"] == 2
        assert AttemptLog.objects.get().task_id == Task.objects.get(status="READY").pk

    def test_refused_writes_and_throughput_go_by_age(self):
        for at in (OLD, timezone.now()):
            RefusedWrite.objects.create(task_id=1, worker_id="w", expected_version=1, intent="complete", at=at)
            Throughput.objects.create(minute=at, queue_name="default", shard=0)
        tables = {
            "attempts": 0, "lines": 0, "refused_writes": 1, "throughput": 1, "command_runs": 0, "locks": 0,
            "workers": 0,
        }  # fmt: skip
        assert prune_history().data["tables"].items() >= tables.items()
        assert (RefusedWrite.objects.count(), Throughput.objects.count()) == (1, 1)

    def test_f02_a_stopped_worker_goes_when_no_row_names_it(self):
        for worker_id in ("gone", "claims", "completed", "attempted", "refused"):
            Worker.objects.create(id=worker_id, hostname="h", pid=1, stopped_at=OLD)
        Worker.objects.create(id="young", hostname="h", pid=1, stopped_at=timezone.now())
        Worker.objects.create(id="running", hostname="h", pid=1, heartbeat_at=OLD)
        rows.processing("claims")
        rows.completed(finished_by="completed")
        Attempt.objects.create(task=rows.ready(), number=1, worker_id="attempted", outcome="failed")
        RefusedWrite.objects.create(task_id=1, worker_id="refused", expected_version=1, intent="complete")
        assert prune_history().data["tables"]["workers"] == 1
        assert not Worker.objects.filter(id="gone").exists()

    def test_runs_of_commands_go_by_their_end(self):
        for finished_at in (OLD, timezone.now()):
            CommandRun.objects.create(name="job", argv=[], started_at=OLD, finished_at=finished_at, outcome="succeeded")
        CommandRun.objects.create(name="job", argv=[], started_at=OLD)
        assert prune_history().data["tables"]["command_runs"] == 1
        assert sorted(CommandRun.objects.values_list("outcome", flat=True)) == ["running", "succeeded"]

    def test_a_lock_goes_when_nobody_has_held_it_for_long(self):
        for number in range(5):
            Lock.objects.create(name=f"free {number}", released_at=OLD)
        Lock.objects.create(name="dead", owner="x", acquired_at=OLD, expires_at=OLD)
        Lock.objects.create(name="held", owner="x", acquired_at=OLD, expires_at=timezone.now() + timedelta(minutes=1))
        Lock.objects.create(name="young", released_at=timezone.now())
        assert prune_history("--dry-run").data["tables"]["locks"] == 6
        assert prune_history().data["tables"]["locks"] == 6
        assert sorted(Lock.objects.values_list("name", flat=True)) == ["held", "young"]

    def test_a_rate_that_nobody_has_used_for_long_leaves_no_row(self):
        Bucket.objects.create(name="key:old", next_at=OLD)
        for minutes in (-1, 90):  # a rate that has just been used, and one that is spent
            Bucket.objects.create(name=f"key:{minutes}", next_at=timezone.now() + timedelta(minutes=minutes))
        assert prune_history().data["tables"]["buckets"] == 1
        assert sorted(Bucket.objects.values_list("name", flat=True)) == ["key:-1", "key:90"]

    def test_the_audit_stays(self):
        Intervention.objects.create(actor="a", source="page", action="x", target="task:1", at=OLD)
        prune_history()
        assert Intervention.objects.filter(at=OLD).exists()

    def test_each_pruned_table_leaves_one_intervention(self):
        RefusedWrite.objects.create(task_id=1, worker_id="w", expected_version=1, intent="complete", at=OLD)
        prune_history()
        entry = Intervention.objects.get()
        assert (entry.action, entry.target) == ("prune older_than=1w", "table:tasks_refusedwrite")

    def test_a_dry_run_deletes_nothing(self):
        RefusedWrite.objects.create(task_id=1, worker_id="w", expected_version=1, intent="complete", at=OLD)
        assert prune_history("--dry-run").data["deleted"] == 1
        assert RefusedWrite.objects.exists()
