"""How a line of "Needs attention" is shown: one row, its button that asks, and the rest behind its menu."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from dashboard.attention import inbox, thresholds
from tasks.models import Epoch, Lock, Queue, Throughput, Worker
from tasks.panels import AttentionLine, Snapshot
from tasks.queue import presence
from tests.dashboard.attention.test_attention import ago, failed, lines
from tests.html import flat
from tests.people import client_of
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)


class TestActs:
    """The button of a line posts to a page that asks, and that page knows what it is about."""

    def ask(self, line: AttentionLine, *groups: str) -> str:
        assert line.act is not None
        fields: dict[str, list[str]] = {}
        for name, value in line.act.fields:
            fields.setdefault(name, []).append(value)
        answer = client_of(*groups).post(line.act.url, fields)
        assert answer.status_code == 200
        assert 'class="confirm"' in answer.text
        return answer.text

    def test_stale_tasks_are_taken_back_from_the_dead_workers_of_the_queue(self):
        Queue.objects.create(name="pay", recovery="ask")
        rows.processing(rows.just_died_worker(), queue_name="pay"), rows.processing("w-other", queue_name="mail")
        line = lines()["stale:pay"]
        assert line.act is not None
        assert line.act.fields == (("worker", "w-died"),)
        assert "1 task, by worker and queue:" in self.ask(line, "Operators")

    def test_a_silent_worker_keeps_its_tasks(self):
        with rows.living_worker("w-silent", lease_seconds=30):
            epoch = {"token": presence.see_epoch(connection), "first_seen_at": timezone.now()}
            Epoch.objects.update_or_create(pk=1, defaults=epoch)
            Worker.objects.filter(pk="w-silent").update(heartbeat_at=ago(seconds=31))
            rows.processing("w-silent", queue_name="pay")
            assert lines()["stale:pay"].act is None

    def test_a_group_of_failures_runs_again(self):
        failed(3), failed(2, error="KeyError")
        text = self.ask(lines()["failed:app.charge:app.errors.Declined"], "Operators")
        assert "<strong>3 tasks</strong>" in text

    def test_a_root_blocker_is_terminated(self, monkeypatch):
        monkeypatch.setitem(thresholds.USUAL, "idle_seconds", 0)
        with session("psql") as conn:
            conn.execute("SELECT 1")
            [line] = lines().values()
            assert line.act is not None
            assert line.act.is_destructive
            assert "End this session?" in self.ask(line, "Lock administrators")

    def test_the_dashboards_own_session_is_not(self, monkeypatch):
        monkeypatch.setitem(thresholds.USUAL, "idle_seconds", 0)
        with session("rowlock:web") as conn:
            conn.execute("SELECT 1")
            [line] = lines().values()
        assert line.act is None

    def test_a_lock_past_its_time_is_released(self):
        at = ago(hours=1)
        Lock.objects.create(name="report", owner="o", fence=7, acquired_at=at, renewed_at=at, expires_at=at)
        assert "Release this lock?" in self.ask(lines()["lock:report:7"], "Lock administrators")


def test_a_line_is_one_row_with_its_button_and_the_rest_in_its_menu():
    Queue.objects.create(name="pay", recovery="ask")
    rows.processing(rows.just_died_worker(), queue_name="pay"), failed(14)
    page = flat(client_of("Operators").get("/admin/").text)
    assert '<span class="severity-critical">1 critical</span><span class="severity-warning">1 warning</span>' in page
    assert '<span class="folded">14 \u00d7 Declined</span>' in page
    line = page[page.index('data-attention="stale:pay"') :]
    line = line[: line.index("</li>")]
    assert re.search(r'<button type="submit" class="button" data-dialog data-action="recover" ?>Take back…<', line)
    assert 'role="menuitem" href="/admin/ops/stale/?queue=pay"' in line
    assert 'role="menuitem" data-copy="python manage.py recover_tasks"' in line
    assert 'role="menuitem" data-action="acknowledge" data-dialog href="/admin/ops/attention/?line=stale%3Apay"' in line


def test_the_line_about_the_list_itself_cannot_be_acknowledged():
    with session("migration") as conn:
        conn.execute("LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
        page = client_of("Operators").get("/admin/").text
    assert 'data-attention="untold"' in page
    assert "ops/attention/?line=" not in page


def test_a_forbidden_button_is_disabled_and_says_which_right_is_missing():
    Queue.objects.create(name="pay", recovery="ask")
    rows.processing(rows.just_died_worker(), queue_name="pay")
    page = flat(client_of("Viewers").get("/admin/").text)
    assert 'data-action="recover" disabled aria-describedby="right-tasks.recover_task">' in page
    assert '<p class="missing-right" id="right-tasks.recover_task">You lack the right tasks.recover_task ' in page
    assert "acknowledge" not in page[page.index('id="attention-lines"') : page.index('id="queues"')]


def test_warnings_are_folded_when_there_are_more_than_six_lines():
    failed()
    fold = re.compile(r'<details id="warnings" class="more" (open)?>')
    with rows.living_worker():
        for number, shown in enumerate([*["open"] * 5, ""]):
            Queue.objects.create(name=f"pay{number}", recovery="ask")
            rows.processing(rows.just_died_worker(f"w-{number}"), queue_name=f"pay{number}")
            assert fold.findall(client_of("Operators", username=f"olga{number}").get("/admin/").text) == [shown]


@pytest.mark.parametrize(
    ("label", "value", "spark"),
    [
        ("Done / min", None, (7, *[0] * 9, 3, 40)),
        ("Failed attempts", "3", (0,) * 10 + (1, 2)),
        ("Wait p95", "24 ms", (0.02425, *[0] * 9, 0.02425, 0.02425)),
    ],
)
def test_the_numbers_of_the_last_hour_have_their_course(label, value, spark):
    now = timezone.now().replace(second=0, microsecond=0)
    for minutes, completed, bad in ((1, 40, 2), (6, 3, 1), (58, 7, 0), (60, 99, 9)):
        waits = [completed if number == 2 else 0 for number in range(16)]
        Throughput.objects.create(
            minute=now - timedelta(minutes=minutes), queue_name="q", shard=0, completed=completed, failed=bad,
            wait_buckets=waits,
        )  # fmt: skip
    found = {figure.label: figure for figure in inbox.figures(Snapshot(), lambda _: True)}
    assert found[label].spark == pytest.approx(spark)
    assert value in (None, found[label].value)
    assert 40 / 5 <= float(found["Done / min"].value.replace(",", "")) <= 40 / 4
