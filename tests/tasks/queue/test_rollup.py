"""Counters that only grow: minutes are added to totals once, and pruned only afterwards."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import Throughput, ThroughputSlot, ThroughputTotal
from tasks.operations.prune import prune_history
from tasks.queue import throughput
from tasks.queue.throughput import SLOT
from tasks.support.audit import Who
from tasks.support.database import fetch
from tests.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)
ME = Who("anna", "command")
A_MONTH = """
INSERT INTO tasks_throughput (minute, queue_name, shard, completed, run_buckets, wait_buckets)
SELECT statement_timestamp() - make_interval(mins => minute), 'default', shard, 1, '{1}', '{1}'
FROM generate_series(43200, 1, -1) AS minute, generate_series(1, 4) AS shard
"""


def minute(ago_minutes: int, queue: str = "default", **columns) -> Throughput:
    values = {
        "completed": 2,
        "failed": 1,
        "run_ms": 3000,
        "wait_ms": 500,
        "run_buckets": [2, 0],
        "wait_buckets": [0, 2],
    }
    at = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=ago_minutes)
    return Throughput.objects.create(minute=at, queue_name=queue, shard=1, **{**values, **columns})


def counted(queue: str = "default") -> tuple:
    [total] = [total for total in throughput.totals() if total.queue_name == queue]
    return total.completed, total.failed, total.run_seconds, total.wait_seconds, total.run_buckets, total.wait_buckets


def test_folding_changes_no_total():
    for ago in (90, 60, 10, 1, 0):
        minute(ago)
    minute(60, "mail", run_buckets=[1, 1])
    expected = (10, 5, 15.0, 2.5, [10, 0], [0, 10])
    assert counted() == expected
    throughput.fold()
    assert counted() == expected
    assert counted("mail")[4] == [1, 1]
    assert ThroughputTotal.objects.get(pk="default").completed == 6


def test_a_minute_is_folded_once():
    minute(60)
    throughput.fold()
    throughput.fold()
    minute(10)
    throughput.fold()
    assert counted() == (4, 2, 6.0, 1.0, [4, 0], [0, 4])


def test_minutes_from_before_there_were_buckets_count_too():
    minute(60, run_buckets=[], wait_buckets=[])
    assert counted()[4] == []
    throughput.fold()
    minute(10)
    throughput.fold()
    assert counted() == (4, 2, 6.0, 1.0, [2, 0], [0, 2])


def test_pruning_changes_no_total():
    minute(60), minute(10), minute(0)
    before = counted()
    deleted = prune_history(timedelta(minutes=1), ME)
    assert deleted["throughput"] == 2
    assert counted() == before


def test_a_minute_that_is_not_closed_is_not_pruned():
    minute(2)
    assert prune_history(timedelta(minutes=1), ME)["throughput"] == 0


def test_a_dry_run_of_pruning_folds_nothing_and_counts_rightly():
    minute(60)
    assert prune_history(timedelta(minutes=1), ME, dry_run=True)["throughput"] == 1
    assert not ThroughputTotal.objects.exists()


def test_very_many_minutes_are_folded_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr(throughput, "MOST_ROWS", 3)
    for ago in range(60, 50, -1):
        minute(ago)
    parts = []
    while throughput.fold():
        parts.append(ThroughputTotal.objects.get().completed)
        assert counted()[0] == 20
    assert parts == [8, 16]
    assert ThroughputTotal.objects.get().completed == 20


def test_a_half_hour_is_added_up_when_it_is_closed_and_as_a_whole():
    for ago in (200, 100, 99, 1):
        minute(ago)
        minute(ago, "mail", run_buckets=[1, 1])
    while throughput.fold():
        pass
    closed = Throughput.objects.filter(minute__lt=ThroughputSlot.objects.latest("at").at + SLOT)
    assert closed.count() == 6
    for queue, buckets in (("default", [6, 0]), ("mail", [3, 3])):
        slots = ThroughputSlot.objects.filter(queue_name=queue)
        assert sum(slot.completed for slot in slots) == 6
        assert [sum(slot.run_buckets[place] for slot in slots) for place in (0, 1)] == buckets
        assert all(slot.at.minute % 30 == 0 for slot in slots)


def test_half_hours_that_no_chart_shows_are_neither_made_nor_kept():
    a_day = 24 * 60
    minute(9 * a_day), minute(7 * a_day)
    ThroughputSlot.objects.create(at=timezone.now() - timedelta(days=9), queue_name="default")
    while throughput.fold():
        pass
    [kept] = ThroughputSlot.objects.all()
    assert abs(timezone.now() - timedelta(days=7) - kept.at) < 2 * SLOT


def test_two_who_fold_at_once_add_once():
    minute(60)
    with session() as other:
        assert other.execute(throughput.ELECT).fetchone() == (True,)
        throughput.fold()
        assert not ThroughputTotal.objects.exists()
        assert not ThroughputSlot.objects.exists()
        other.rollback()
    throughput.fold()
    assert counted()[0] == 2


def test_a_scrape_reads_only_what_is_not_folded():
    """With a month of minutes: the index on them, and of it the end alone."""
    with connection.cursor() as cursor:
        cursor.execute(A_MONTH)
        while throughput.fold():
            pass
        minute(1)
        cursor.execute("ANALYZE tasks_throughput")
        cursor.execute(
            "EXPLAIN " + throughput.TOTALS, {"folded_until": fetch(connection, throughput.FOLDED)[0]["until"]}
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Scan using tasks_throughput_row on tasks_throughput" in plan
