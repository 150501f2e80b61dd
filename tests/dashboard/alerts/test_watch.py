"""Incidents: opened, grown, over, acknowledged, many at once; each is one task for each channel."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from dashboard.alerts import watch as watching
from dashboard.alerts import watching as web_watching
from dashboard.alerts.watch import GONE_FOR, watch
from dashboard.attention.alerts import failing_channels
from dashboard.models import Acknowledgement, Incident
from dashboard.tasks import send_alert
from tasks import panels
from tasks.models import Task
from tasks.panels import AttentionLine, Severity, Snapshot
from tasks.support.database import fetch
from tests.commands import run

LINE = AttentionLine(key="stale:mail", text="2 tasks are stale.", severity=Severity.STOPPED, size=2)
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def lines(settings, monkeypatch) -> list[AttentionLine]:
    """The lines that need attention, for a test to change."""
    panels.load()
    found: list[AttentionLine] = []
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_URLS": ["https://hooks.example/x"]}
    monkeypatch.setattr(panels, "ATTENTION", [lambda snapshot: list(found)])
    return found


def told() -> list[str]:
    """Each state that a task tells, the oldest first; none carries an address."""
    tasks = list(Task.objects.filter(queue_name="rowlock-alerts").order_by("id"))
    assert all("hooks" not in str(task.kwargs) for task in tasks)
    return [task.kwargs["state"] for task in tasks]


def let_it_be_gone() -> None:
    watch()
    Incident.objects.filter(gone_since__isnull=False).update(gone_since=timezone.now() - GONE_FOR)
    watch()


def test_an_incident_is_told_once_when_it_opens_grows_tenfold_and_is_over(lines):
    lines[:] = [LINE]
    assert watch()
    watch()
    assert told() == ["opened"]
    lines[:] = [replace(LINE, size=19)]
    watch()
    assert told() == ["opened"]
    for size in (20, 21):
        lines[:] = [replace(LINE, size=size)]
        watch()
    assert told() == ["opened", "grew"]
    lines.clear()
    watch()
    assert told() == ["opened", "grew"]
    let_it_be_gone()
    watch()
    assert told() == ["opened", "grew", "resolved"]


def test_a_line_that_flickers_is_told_once(lines):
    for state in ([LINE], [], [LINE], [], [LINE]):
        lines[:] = state
        watch()
    assert told() == ["opened"]
    assert Incident.objects.get().gone_since is None


def test_what_is_acknowledged_stays_silent(lines):
    Acknowledgement.objects.create(line=LINE.name, actor="a", reason="b", size=5)
    lines[:] = [LINE]
    watch()
    assert told() == []
    lines[:] = [replace(LINE, size=6)]
    watch()
    assert told() == ["opened"]
    Acknowledgement.objects.update(size=1000)
    lines.clear()
    let_it_be_gone()
    assert told() == ["opened"]
    assert Incident.objects.get().resolved_at


def test_a_storm_is_one_message_with_counts_and_one_when_it_is_over(lines):
    lines[:] = [replace(LINE, key=f"stale:q{number}") for number in range(500)]
    watch()
    watch()
    assert told() == ["opened"]
    storm = Incident.objects.get(kind="storm")
    assert (storm.title, storm.detail) == ("500 things need attention at once", "500 of stale")
    del lines[1:]
    let_it_be_gone()
    assert told() == ["opened"]
    lines.clear()
    let_it_be_gone()
    assert told() == ["opened", "resolved"]


def test_what_is_over_is_pruned_a_storm_with_its_last_member(lines):
    def prune() -> int:
        return run("prune_history", "--older-than", "7d", "--json").data["tables"]["incidents"]

    lines[:] = [replace(LINE, key=f"stale:q{number}") for number in range(21)]
    watch()
    assert prune() == 0
    lines.clear()
    let_it_be_gone()
    assert prune() == 0
    Incident.objects.update(resolved_at=timezone.now() - timedelta(days=8))
    kept = Incident.objects.exclude(kind="storm").first()
    Incident.objects.filter(pk=kept.pk).update(resolved_at=timezone.now())
    assert prune() == 20
    assert set(Incident.objects.values_list("kind", flat=True)) == {"stale", "storm"}
    Incident.objects.filter(pk=kept.pk).update(resolved_at=timezone.now() - timedelta(days=8))
    assert prune() == 2


def test_an_incomplete_list_resolves_nothing(lines, monkeypatch):
    lines[:] = [LINE]
    watch()
    monkeypatch.setattr(panels, "ATTENTION", [lambda snapshot: 1 // 0])
    let_it_be_gone()
    assert (told(), Incident.objects.get().gone_since) == (["opened"], None)


def test_the_server_ends_the_comparison_of_a_process_that_froze(monkeypatch):
    """Else nobody could compare until its session ends."""
    found = []

    def source(snapshot: Snapshot) -> list[AttentionLine]:
        found.extend(fetch(connection, "SHOW idle_in_transaction_session_timeout"))
        return []

    monkeypatch.setattr(panels, "ATTENTION", [source])
    watch()
    assert found == [{"idle_in_transaction_session_timeout": "15s"}]


def test_a_channel_is_not_told_of_its_own_failure(lines):
    lines[:] = [replace(LINE, key="alert-channel:env-1-https"), replace(LINE, key="alert-channel:other")]
    watch()
    assert [task.kwargs["incident"] for task in Task.objects.all()] == [
        Incident.objects.get(line="alert-channel:other").pk
    ]


def test_without_a_channel_nothing_is_asked(settings, lines):
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_URLS": []}
    lines[:] = [LINE]
    assert not watching.watch()
    assert not Incident.objects.exists()


def test_a_channel_that_failed_three_times_is_a_line(lines):
    lines[:] = [LINE]
    watch()
    Task.objects.update(attempt=2)
    assert not list(failing_channels(Snapshot()))
    Task.objects.update(attempt=3)
    [line] = failing_channels(Snapshot())
    assert line.name == "alert-channel:env-1-https"


def test_a_message_is_one_task():
    message = {"incident": 1, "state": "opened", "channel": "env-1-https", "size": 2}
    assert send_alert.enqueue(**message).id == send_alert.enqueue(**message).id
    assert Task.objects.count() == 1


def test_cron_watches_too(lines, monkeypatch):
    monkeypatch.setattr(web_watching, "needs_worker", lambda: False)  # a child would not see this transaction
    lines[:] = [LINE]
    outcome = run("queue_status", "--alert")
    assert (outcome.status, told()) == (0, ["opened"])
    assert "No alert waits for a worker." in outcome.stdout
