"""Tasks a minute by worker, out of the rollup of the flushes."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks.diagnosis.stats import rates
from tasks.models import Throughput
from tests.tasks import claiming, rows
from tests.tasks.claiming import claim

pytestmark = pytest.mark.django_db
# Two ids whose hashes end in the same fifteen bits; found by trying numbers one after another.
SHARE = """
SELECT min(number), max(number) FROM generate_series(1, 2000) AS number
GROUP BY hashtext('w' || number) & 32767 HAVING count(*) = 2 LIMIT 1
"""


def work(worker_id: str, number: int) -> None:
    rows.many(number)
    for claimed in claim(number, worker_id=worker_id):
        claiming.complete(connection, worker_id, claimed)


def test_each_worker_has_its_own_rate():
    work("w1", 6), work("w2", 3)
    found = rates({"w1": 60.0, "w2": 60.0, "idle": 60.0})
    assert {id: rate.per_minute for id, rate in found.items()} == {"w1": 6, "w2": 3, "idle": 0}
    assert not any(rate.is_shared for rate in found.values())


def test_an_old_worker_is_measured_over_the_window_and_not_its_life():
    work("w1", 6)
    assert 0.9 < rates({"w1": 86_400.0})["w1"].per_minute <= 1.2


def test_what_was_long_ago_counts_no_more():
    work("w1", 6)
    Throughput.objects.update(minute=timezone.now() - timedelta(minutes=10))
    assert rates({"w1": 600.0})["w1"].per_minute == 0


def test_two_workers_of_one_shard_are_told_together():
    with connection.cursor() as cursor:
        cursor.execute(SHARE)
        first, second = (f"w{number}" for number in cursor.fetchone())
    work(first, 4)
    found = rates({first: 60.0, second: 60.0})
    assert [rate.is_shared for rate in found.values()] == [True, True]


def test_each_of_the_last_minutes_has_its_number_oldest_first():
    work("w1", 6)
    minute, shard = Throughput.objects.values_list("minute", "shard").get()
    for ago, number in ((3, 5), (19, 2), (20, 9)):
        before = minute - timedelta(minutes=ago)
        Throughput.objects.create(minute=before, queue_name="q", shard=shard, failed=number)
    rate = rates({"w1": 86_400.0})["w1"]
    assert rate.minutes == (2, *(0,) * 15, 5, 0, 0, 6)
    assert 11 / 6 - 0.1 < rate.per_minute <= 11 / 5
    assert rates({"idle": 60.0})["idle"].minutes == (0,) * 20
