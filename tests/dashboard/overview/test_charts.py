"""Charts drawn on the server: the numbers are those of the rollup, the picture those of the numbers."""

import doctest
import re
from datetime import timedelta
from itertools import pairwise

import pytest
from django.utils import timezone

from dashboard import charts
from dashboard.charts import SPANS
from tasks.models import Throughput, ThroughputSlot
from tasks.queue import throughput
from tasks.queue.throughput import BUCKETS, KEPT, SLOT
from tests.html import flat
from tests.people import client_of

pytestmark = pytest.mark.django_db
HOUR = SPANS["1h"]


def finished(minutes_ago: float, completed: int = 0, failed: int = 0, *, bucket: int = 3, shard: int = 0) -> None:
    """So many completions, all of them in one bucket, and failures."""
    counts = [completed if number == bucket else 0 for number in range(BUCKETS)]
    minute = (timezone.now() - timedelta(minutes=minutes_ago)).replace(second=0, microsecond=0)
    Throughput.objects.create(
        minute=minute, queue_name="q", shard=shard, completed=completed, failed=failed, run_buckets=counts,
        wait_buckets=counts,
    )  # fmt: skip


def heights(content: str, kind: str) -> list[int]:
    return [int(height) for height in re.findall(rf'<rect class="{kind}"[^>]* height="(\d+)"', content)]


def test_the_examples_hold():
    assert doctest.testmod(charts).failed == 0


def test_shards_and_minutes_of_one_slot_add_up():
    finished(1, 10, 1, shard=0), finished(1, 20, 2, shard=1)
    slot = max(charts.series(HOUR), key=lambda slot: slot.completed)
    assert (slot.completed, slot.failed, sum(slot.run_buckets)) == (30, 3, 30)


@pytest.mark.parametrize("key", SPANS)
def test_every_slot_is_there_and_the_present_one_is_last(key):
    slots = charts.series(SPANS[key])
    assert len(slots) == SPANS[key].slots
    assert timedelta() <= timezone.now() - slots[-1].at < SPANS[key].step
    assert {after.at - before.at for before, after in pairwise(slots)} == {SPANS[key].step}


def test_what_is_older_than_the_span_is_not_in_it():
    finished(61, 10)
    assert sum(slot.completed for slot in charts.series(HOUR)) == 0
    assert sum(slot.completed for slot in charts.series(SPANS["24h"])) == 10


def test_half_hours_and_the_minutes_after_them_are_read_once_each():
    for minutes_ago in (0, 1, 40, 70, 100, 400, 2000):
        finished(minutes_ago, 10, shard=minutes_ago % 3)
    before = {key: charts.series(SPANS[key]) for key in SPANS}
    while throughput.fold():
        pass
    assert ThroughputSlot.objects.exists()
    Throughput.objects.filter(minute__lt=ThroughputSlot.objects.latest("at").at + SLOT).delete()
    assert {key: charts.series(SPANS[key]) for key in ("24h", "7d")} == {key: before[key] for key in ("24h", "7d")}
    assert sum(slot.completed for slot in before["7d"]) == 70
    assert sum(slot.completed for slot in before["24h"]) == 60


@pytest.mark.parametrize("key", ["24h", "7d"])
def test_a_long_step_is_whole_half_hours(key):
    assert SPANS[key].step % SLOT == timedelta()
    assert SPANS[key].step * SPANS[key].slots < KEPT


def test_rows_of_before_the_buckets_have_no_latency_and_no_error():
    Throughput.objects.create(
        minute=timezone.now().replace(second=0, microsecond=0), queue_name="q", shard=0, completed=5
    )
    slot = max(charts.series(HOUR), key=lambda slot: slot.completed)
    assert (slot.completed, slot.run_slow) == (5, None)


def test_bars_are_as_high_as_their_numbers():
    finished(1, 100), finished(2, 50), finished(3, 0, 25)
    content = client_of("Viewers").get("/admin/").content.decode()
    assert heights(content, "completed") == [charts.HIGH // 2, charts.HIGH]
    assert heights(content, "failed") == [charts.HIGH // 4]


def test_one_failure_among_thousands_is_seen():
    finished(1, 100_000, 1)
    assert heights(client_of("Viewers").get("/admin/").content.decode(), "failed")[0] >= charts.HIGH // 60


def test_a_curve_has_a_gap_where_nothing_was_completed():
    finished(1, 5), finished(2, 5), finished(10, 5)
    drawn = charts.latencies(charts.series(HOUR), HOUR).curves[0].path
    assert drawn.count("M") == 2


def test_slower_is_higher():
    finished(1, 5, bucket=12), finished(2, 5, bucket=2)
    slots = charts.series(HOUR)
    low, high = (charts.height(slot.run_slow) for slot in slots if slot.run_slow is not None)
    assert high < low, "SVG counts from the top"


def test_a_percentile_is_estimated_once(monkeypatch):
    finished(1, 5)
    asked, plain = [], throughput.percentile
    monkeypatch.setattr(throughput, "percentile", lambda *args: asked.append(args) or plain(*args))
    client_of("Viewers").get("/admin/ops/charts/")
    assert len(asked) == 2 * HOUR.slots + 2, "the curves of every slot, and the medians of the one in the table"


def test_a_picture_says_in_words_and_in_a_table_what_it_shows():
    finished(1, 40, 2)
    content = client_of("Viewers").get("/admin/").content.decode()
    summary = "Last hour: 40 attempts completed and 2 failed;"
    assert re.search(rf'<svg role="img" aria-label="{summary}', content)
    assert "The same as a table" in content
    assert re.search(r'<tr id="slot-\d+">', content)


@pytest.mark.parametrize("key", SPANS)
def test_the_panel_of_each_span_refreshes_itself(key):
    content = client_of("Viewers").get("/admin/ops/charts/", {"span": key}).content.decode()
    assert f'?span={key}#charts" aria-current="true"' in flat(content)


def test_an_unknown_span_is_the_last_hour():
    content = client_of("Viewers").get("/admin/", {"span": "<b>"}).content.decode()
    assert '?span=1h#charts" aria-current="true"' in flat(content)


def test_charts_need_the_right_to_see_them():
    assert client_of().get("/admin/ops/charts/").status_code == 403
    assert b"<svg role" not in client_of().get("/admin/").content
