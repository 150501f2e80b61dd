"""The numbers of `tasks.diagnosis.stats` and `queue_status`: right, capped, and fast beside many finished rows."""

import time
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks.diagnosis import stats
from tasks.models import Queue, Task, Throughput, Worker
from tasks.queue import presence
from tests import old_rows
from tests.commands import run
from tests.tasks import rows

pytestmark = pytest.mark.django_db


def ago(**duration):
    return timezone.now() - timedelta(**duration)


def ahead(**duration):
    return timezone.now() + timedelta(**duration)


def queue(name="default", **options):
    return {numbers.name: numbers for numbers in stats.collect(**options).queues}[name]


def status(*argv):
    return run("queue_status", "--json", *argv)


def test_an_empty_queue_has_no_numbers():
    outcome = status()
    assert (outcome.status, outcome.data) == (0, {"overdue": [], "queues": [], "workers": []})


@pytest.mark.parametrize("key", [None, "k"])
def test_ready_is_due_and_scheduled_is_not(key):
    for priority in (0, 5):
        rows.ready(priority=priority, ordering_key=key and f"k{priority}")
    rows.ready(run_after=ahead(hours=1), ordering_key=key)
    assert (queue().ready, queue().scheduled) == (2, 1)


def test_keyed_and_unkeyed_are_counted_together():
    rows.ready()
    rows.ready(ordering_key="a", run_after=ago(seconds=90))
    assert queue().ready == 2
    assert 90 <= queue().oldest_ready_seconds < 150


def test_one_queue_alone_has_the_numbers_that_it_has_among_all():
    for name in ("a", "b", "c"):
        rows.many(3, queue_name=name, priority=len(name))
        rows.ready(queue_name=name, run_after=ago(seconds=90))
        rows.ready(queue_name=name, run_after=ahead(hours=1))
        rows.ready(queue_name=name, ordering_key=f"key of {name}")
    rows.processing(rows.dead_worker("w1"))
    alone, among_all = stats.waiting("b", presence.states()), queue("b")
    assert (alone.ready, alone.scheduled) == (among_all.ready, among_all.scheduled) == (5, 1)
    assert alone.oldest_ready_seconds == pytest.approx(among_all.oldest_ready_seconds, abs=20)
    held, nothing = stats.waiting("default", presence.states()), stats.waiting("nobody's", {})
    assert (held.processing, held.stale) == (queue().processing, queue().stale) == (1, 1)
    assert (nothing.ready, nothing.scheduled, nothing.oldest_ready_seconds) == (0, 0, None)


def test_the_oldest_is_found_behind_higher_priorities_and_beyond_the_cap():
    rows.many(5, priority=100)
    rows.ready(priority=-100, run_after=ago(seconds=1000))
    rows.ready(priority=-100, run_after=ahead(seconds=1000))
    assert 1000 <= queue(cap=2).oldest_ready_seconds < 1060


def test_what_waits_behind_its_key_is_not_the_oldest():
    rows.processing("w-1", ordering_key="runs")
    for key in ("runs", "retries"):
        rows.ready(ordering_key=key, run_after=ahead(hours=1) if key == "retries" else ago(seconds=900))
        rows.ready(ordering_key=key, run_after=ago(seconds=900))
    assert (queue().ready, queue().scheduled, queue().oldest_ready_seconds) == (3, 1, None)


def test_the_first_of_a_key_is_late_when_nobody_takes_it():
    rows.ready(ordering_key="a", run_after=ago(seconds=90))
    rows.ready(ordering_key="a", run_after=ago(seconds=900))
    rows.processing("w-1", ordering_key="b")
    assert 90 <= queue().oldest_ready_seconds < 150


def test_who_holds_a_key_need_not_be_the_first_of_it():
    """An enqueuer may commit a lower id late: its task waits for the one that runs."""
    rows.ready(ordering_key="a", run_after=ago(seconds=900))
    rows.processing("w-1", ordering_key="a")
    assert queue().oldest_ready_seconds is None


def test_nothing_due_has_no_oldest():
    rows.ready(run_after=ahead(hours=1))
    assert queue().oldest_ready_seconds is None


def test_each_queue_has_its_own_numbers():
    rows.ready(queue_name="a")
    rows.failed(queue_name="b")
    rows.cancelled(queue_name="c")
    Queue.objects.create(name="d", paused=True, recovery="ask")
    numbers = {numbers.name: numbers for numbers in stats.collect().queues}
    assert sorted(numbers) == ["a", "b", "d"]
    assert (numbers["a"].ready, numbers["b"].failed) == (1, 1)
    assert (numbers["d"].paused, numbers["d"].recovery) == (True, "ask")


def test_counts_stop_at_the_cap():
    rows.many(4)
    rows.many(4, status="FAILED", attempt=1, finished_at=timezone.now())
    assert (queue(cap=3).ready, queue(cap=3).failed) == (3, 3)


def test_completions_come_from_the_rollup_of_the_last_hour():
    for minutes, shard in ((1, 0), (1, 1), (59, 0), (61, 0)):
        Throughput.objects.create(minute=ago(minutes=minutes), queue_name="default", shard=shard, completed=10)
    assert queue().completed_last_hour == 30


def test_a_task_whose_worker_is_gone_is_stale():
    rows.processing(rows.dead_worker())
    rows.processing("w-never-registered")
    assert (queue().processing, queue().stale) == (2, 2)


@pytest.mark.django_db(transaction=True)
class TestWithWorkers:
    def test_what_a_live_worker_holds_is_not_stale(self):
        began = time.monotonic()
        with rows.living_worker(queues=["served"]) as worker:
            rows.processing(worker)
            data = status("--max-stale", 0).data
        passed = time.monotonic() - began
        assert {queue["name"]: queue["stale"] for queue in data["queues"]} == {"default": 0, "served": 0}
        [listed] = data["workers"]
        assert (listed["id"], listed["hostname"], listed["pid"], listed["alive"]) == (worker, "host", 1, True)
        assert 0 <= listed["heartbeat_age_seconds"] <= passed

    def test_a_worker_that_has_just_died_leaves_stale_tasks(self):
        rows.processing(rows.just_died_worker())
        outcome = status("--max-stale", 0)
        assert (outcome.status, outcome.data["queues"][0]["stale"]) == (3, 1)
        assert outcome.data["workers"][0]["alive"] is False


class TestLimits:
    def test_within_the_limits_it_is_healthy(self):
        rows.ready(run_after=ago(seconds=10))
        assert status("--max-stale", 0, "--max-ready-age", 60).status == 0

    def test_too_many_stale_tasks_over_all_queues(self):
        for name in ("a", "b"):
            rows.processing("w-gone", queue_name=name)
        assert status("--max-stale", 2).status == 0
        outcome = run("queue_status", "--max-stale", 1, "-v0")
        assert (outcome.status, outcome.stdout) == (3, "")
        assert "1 in a, 1 in b; allowed are 1" in outcome.stderr

    def test_a_task_that_waits_too_long(self):
        rows.ready(run_after=ago(seconds=100), queue_name="mail")
        outcome = status("--max-ready-age", 60)
        assert (outcome.status, outcome.data["queues"][0]["name"]) == (3, "mail")
        assert "Queue mail: a due task waits for 100 s, allowed are 60" in outcome.stderr

    @pytest.mark.parametrize("argv", [("--max-stale", "-1"), ("--max-stale", "x"), ("--max-ready-age", "nan")])
    def test_usage_errors(self, argv):
        assert status(*argv).status == 2


def test_the_table_for_people_is_aligned_and_harmless():
    with old_rows.unchecked():
        rows.ready(queue_name="\x1b[2Jevil")
    rows.ready(queue_name="a")
    Worker.objects.create(id="w1", hostname="h", pid=42)
    lines = run("queue_status").stdout.splitlines()
    assert lines[1].split()[:2] == ["\\x1b[2Jevil", "1"]
    assert len({line.index(" 1 ") for line in (lines[1], lines[2])}) == 1
    *shown, _number, _unit, task = lines[5].split()  # the age of its heartbeat
    assert (*shown, task) == ("w1", "h", "42", "alive", "-")


def test_no_count_scans_the_finished_rows():
    """Every statement on tasks_task walks a partial index, however many rows are COMPLETED."""
    rows.many(20)
    rows.failed()
    rows.processing("w1")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tasks_task (task_path, status, attempt, finished_at) "
            "SELECT 'a.b', 'COMPLETED', 1, now() FROM generate_series(1, 20000)"
        )
        cursor.execute("ANALYZE tasks_task")
        for statement in (stats.UNKEYED_READY, stats.KEYED_READY, stats.LIMITED_READY, stats.PROCESSING, stats.FAILED):
            cursor.execute(f"EXPLAIN {statement}", {"cap": stats.COUNT_CAP, "queue": None})
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan on tasks_task" not in plan, plan
            assert "tasks_task_pkey" not in plan, plan
    assert Task.objects.count() == 20_022
