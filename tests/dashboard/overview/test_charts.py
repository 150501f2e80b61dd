"""Charts drawn on the server: the numbers are those of the rollup, the picture those of the numbers."""

import doctest
import html
import re
from datetime import timedelta
from itertools import pairwise

import pytest
from django.utils import timezone

from dashboard import charts, series
from dashboard.series import SPANS, Slot, Span
from tasks.models import Throughput, ThroughputSlot
from tasks.queue import throughput
from tasks.queue.throughput import BUCKETS, KEPT, SLOT
from tests.html import flat
from tests.people import client_of
from tests.tasks import rows

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


def slots_of(span: Span) -> list[Slot]:
    return series.look(span).slots


def heights(content: str, kind: str) -> list[int]:
    return [int(height) for height in re.findall(rf'<rect class="{kind}"[^>]* height="(\d+)"', content)]


def test_the_examples_hold():
    assert doctest.testmod(charts).failed == 0


def test_shards_and_minutes_of_one_slot_add_up():
    finished(1, 10, 1, shard=0), finished(1, 20, 2, shard=1)
    slot = max(slots_of(HOUR), key=lambda slot: slot.completed)
    assert (slot.completed, slot.failed, sum(slot.run_buckets)) == (30, 3, 30)


@pytest.mark.parametrize("key", SPANS)
def test_every_slot_is_there_and_the_present_one_is_last(key):
    slots = slots_of(SPANS[key])
    assert len(slots) == SPANS[key].slots
    assert timedelta() <= timezone.now() - slots[-1].at < SPANS[key].step
    assert {after.at - before.at for before, after in pairwise(slots)} == {SPANS[key].step}


def test_what_is_older_than_the_span_is_not_in_it():
    finished(61, 10)
    assert sum(slot.completed for slot in slots_of(HOUR)) == 0
    assert sum(slot.completed for slot in slots_of(SPANS["24h"])) == 10


def test_half_hours_and_the_minutes_after_them_are_read_once_each():
    for minutes_ago in (0, 1, 40, 70, 100, 400, 2000):
        finished(minutes_ago, 10, shard=minutes_ago % 3)
    before = {key: slots_of(SPANS[key]) for key in SPANS}
    while throughput.fold():
        pass
    assert ThroughputSlot.objects.exists()
    Throughput.objects.filter(minute__lt=ThroughputSlot.objects.latest("at").at + SLOT).delete()
    assert {key: slots_of(SPANS[key]) for key in ("24h", "7d")} == {key: before[key] for key in ("24h", "7d")}
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
    slot = max(slots_of(HOUR), key=lambda slot: slot.completed)
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
    drawn = charts.latencies(slots_of(HOUR), HOUR).curves[0].path
    assert drawn.count("M") == 2


def test_slower_is_higher():
    finished(1, 5, bucket=12), finished(2, 5, bucket=2)
    slots = slots_of(HOUR)
    low, high = (charts.height(slot.run_slow, (-3, 2)) for slot in slots if slot.run_slow is not None)
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
    assert f'hx-get="/admin/ops/charts/?span={key}"' in client_of("Viewers").get("/admin/", {"span": key}).text
    content = client_of("Viewers", username="vera").get("/admin/ops/charts/", {"span": key}).content.decode()
    assert f'?span={key}#charts" aria-current="true"' in flat(content)


def test_an_unknown_span_is_the_last_hour():
    content = client_of("Viewers").get("/admin/", {"span": "<b>"}).content.decode()
    assert '?span=1h#charts" aria-current="true"' in flat(content)


def test_charts_need_the_right_to_see_them():
    assert client_of().get("/admin/ops/charts/").status_code == 403
    assert b"<svg role" not in client_of().get("/admin/").content


def test_the_axes_have_values_that_the_scale_is_made_of():
    finished(1, 118, 0, bucket=8)
    slots = slots_of(HOUR)
    throughput, latency = charts.throughput_chart(slots, HOUR), charts.latencies(slots, HOUR)
    assert (throughput.ticks, throughput.grid) == (["200", "100", "0"], (0, charts.HIGH // 2, charts.HIGH))
    assert latency.ticks == ["100 s", "10 s", "1 s"]
    assert list(latency.grid) == [0, charts.HIGH // 2, charts.HIGH]


def test_every_slot_is_said_in_words():
    finished(1, 1500, 2, bucket=2)
    slots = slots_of(HOUR)
    said, slow = (
        charts.throughput_chart(slots, HOUR).points.split("\n"),
        charts.latencies(slots, HOUR).points.split("\n"),
    )
    assert len(said) == len(slow) == HOUR.slots
    [place] = [number for number, slot in enumerate(slots) if slot.completed]
    assert said[place] == f"{slots[place].at:%H:%M} UTC: 1,500 completed, 2 failed"
    assert slow[place] == f"{slots[place].at:%H:%M} UTC: p95 wait 24 ms, p95 run 24 ms"


class TestAChosenTime:
    def test_it_shows_what_finished_between_its_ends(self):
        finished(10, 5), finished(60, 7), finished(130, 9)
        now = timezone.now()
        span = series.chosen(now - timedelta(minutes=90), now - timedelta(minutes=30), now)
        seen = series.look(span)
        assert (span.step, span.slots) == (timedelta(minutes=1), 60)
        assert sum(slot.completed for slot in seen.slots) == 7
        assert [(queue.name, queue.completed, sum(queue.course)) for queue in seen.queues] == [("q", 7, 7)]

    @pytest.mark.parametrize(("hours", "minutes"), [(2, 1), (3, 30), (48, 30), (49, 120)])
    def test_a_long_one_has_longer_steps(self, hours, minutes):
        now = timezone.now()
        assert series.chosen(now - timedelta(hours=hours), now, now).step == timedelta(minutes=minutes)

    def test_one_that_ends_in_the_future_ends_now(self):
        now = timezone.now()
        assert series.chosen(now - timedelta(hours=1), now + timedelta(days=1), now).until == now

    def test_the_page_keeps_it_in_its_form_and_in_its_panel(self):
        since = timezone.now() - timedelta(hours=3)
        written = {"from": f"{since:%Y-%m-%dT%H:%M}", "to": f"{since + timedelta(hours=1):%Y-%m-%dT%H:%M}"}
        page = client_of("Viewers").get("/admin/", written).text
        for name, text in written.items():
            assert f'<input type="datetime-local" name="{name}" value="{text}"' in page
        assert f'hx-get="/admin/ops/charts/?from={written["from"].replace(":", "%3A")}&amp;to=' in page
        assert '#charts" aria-current="true"' not in flat(page)

    @pytest.mark.parametrize(
        ("since", "until", "problem"),
        [
            ("2 o'clock", "", "Write both times like 2026-11-21 03:10"),
            ("2020-01-01T00:00", "", "Throughput is kept for 8 days."),
            ("2031-01-01T00:00", "", "The time must begin before it ends"),
        ],
    )
    def test_one_that_cannot_be_shown_says_why(self, since, until, problem):
        page = client_of("Viewers").get("/admin/", {"from": since, "to": until}).text
        assert problem in html.unescape(page)
        assert '?span=1h#charts" aria-current="true"' in flat(page)


def test_the_largest_queues_and_tasks_of_the_span():
    finished(1, 30, 2)
    for number in range(3):
        rows.completed(task_path="app.often", finished_at=timezone.now() - timedelta(minutes=number))
    rows.failed(task_path="app.often", finished_at=timezone.now())
    rows.completed(task_path="app.once", finished_at=timezone.now())
    rows.completed(task_path="app.before", finished_at=timezone.now() - timedelta(hours=3)), rows.ready()
    seen = series.look(HOUR)
    assert [(share.name, share.completed, share.failed) for share in seen.queues] == [("q", 30, 2)]
    assert [(share.name, share.completed, share.failed) for share in seen.tasks] == [
        ("app.often", 3, 1),
        ("app.once", 1, 0),
    ]
    page = flat(client_of("Viewers").get("/admin/").text)
    assert "By task, of the newest 2,000" in page
    assert '<span class="path" translate="no">app.often</span>' in page


def test_the_tasks_of_a_chosen_time_are_found_by_when_they_were_enqueued(monkeypatch):
    monkeypatch.setattr(series, "SAMPLE", 2)
    now = timezone.now()
    for hours in (3, 3, 2, 1, 0, 0, 0):
        at = now - timedelta(hours=hours)
        rows.completed(task_path=f"app.of{hours}", created_at=at, finished_at=at)
    span = series.chosen(now - timedelta(hours=3, minutes=30), now - timedelta(hours=1, minutes=30), now)
    assert {share.name: share.completed for share in series.look(span).tasks} == {"app.of2": 1, "app.of3": 1}
