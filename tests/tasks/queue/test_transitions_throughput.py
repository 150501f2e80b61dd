"""The rollup behind the charts, written with every flush: finished attempts by minute and queue."""

import time
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import Sum
from django.utils import timezone

from tasks.models import Task, Throughput
from tasks.queue import completion
from tasks.queue.completion import Ending, Failure
from tasks.queue.throughput import BOUNDS_SECONDS, BUCKETS
from tests.tasks import rows
from tests.tasks.claiming import claim

pytestmark = pytest.mark.django_db
BROKEN = Failure("builtins.ValueError", "", 0.0)


def flush(claims, *, ran=0.0, failure=None, worker_id="w1"):
    now = time.monotonic()
    endings = [Ending(made.id, made.version, made.attempt, now - ran, now, failure=failure) for made in claims]
    return completion.flush(connection, worker_id, endings)


def sums(queue_name: str) -> dict[str, int]:
    columns = ("completed", "failed", "run_ms", "wait_ms")
    return Throughput.objects.filter(queue_name=queue_name).aggregate(**{name: Sum(name) for name in columns})


def test_run_and_wait_are_summed_in_milliseconds():
    rows.many(3, run_after=timezone.now() - timedelta(seconds=100))
    flush(claim(), ran=2.5)
    found = sums("default")
    assert (found["completed"], found["failed"]) == (3, 0)
    assert found["run_ms"] == pytest.approx(7_500, abs=10)
    assert found["wait_ms"] == pytest.approx(3 * 97_500, abs=3 * 5_000)


def test_nobody_waits_for_less_than_no_time():
    rows.ready()
    claimed = claim()
    Task.objects.update(run_after=timezone.now() + timedelta(hours=1))
    flush(claimed)
    assert sums("default")["wait_ms"] == 0


def test_each_queue_has_a_sum_of_its_own():
    rows.many(2, queue_name="a")
    rows.many(3, queue_name="b")
    flush(claim())
    assert (sums("a")["completed"], sums("b")["completed"]) == (2, 3)


def test_failures_are_counted_without_their_times():
    rows.many(4)
    flush(claim(), ran=5, failure=BROKEN)
    assert sums("default") == {"completed": 0, "failed": 4, "run_ms": 0, "wait_ms": 0}


def test_flushes_of_one_worker_and_minute_add_up_in_one_row():
    rows.many(8)
    for failure in (None, BROKEN, None, BROKEN):
        flush(claim(2), failure=failure)
    assert (sums("default")["completed"], sums("default")["failed"]) == (4, 4)
    minutes = Throughput.objects.values_list("minute", flat=True)
    assert all((minute.second, minute.microsecond) == (0, 0) for minute in minutes)
    assert len(minutes) <= 2, "one, or two when a minute ended just then"


def test_workers_write_rows_of_their_own_so_that_none_waits_for_another():
    rows.many(2)
    for worker_id in ("w1", "w2"):
        flush(claim(1, worker_id=worker_id), worker_id=worker_id)
    assert Throughput.objects.values("shard").distinct().count() == 2


def test_refused_writes_do_not_count():
    rows.many(2)
    claims = claim()
    Task.objects.filter(pk=claims[0].id).update(claimed_by="w2")
    flush(claims)
    assert sums("default")["completed"] == 1


def test_rebased_writes_count_once():
    rows.many(2)
    claims = claim()
    Task.objects.filter(pk=claims[0].id).update(priority=1)
    flush(claims)
    assert sums("default")["completed"] == 2


def test_completions_are_counted_by_how_long_they_waited_and_ran():
    rows.many(3, run_after=timezone.now() - timedelta(seconds=100))
    rows.many(3)
    claimed = claim()
    for ran, some in ((0.0, claimed[:2]), (0.7, claimed[2:])):
        flush(some, ran=ran)
    found = Throughput.objects.all()  # two when a minute ended just then
    run, wait = (
        [sum(counts) for counts in zip(*(getattr(row, name) for row in found), strict=True)]
        for name in ("run_buckets", "wait_buckets")
    )
    assert (run[0], run[BOUNDS_SECONDS.index(0.5) + 1]) == (2, 4)
    assert wait[BOUNDS_SECONDS.index(60.0) + 1] == 3
    assert len(run) == len(wait) == BUCKETS
    assert sum(run) == sum(wait) == sum(row.completed for row in found) == 6
