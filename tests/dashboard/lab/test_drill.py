"""The kill drill: a real worker dies, its row comes back, and every version of it was seen."""

from typing import Any

import pytest

from dashboard.lab import drill, requests
from dashboard.lab.drill import Event
from dashboard.lab.worker import Plan
from dashboard.management.commands.kill_drill import table_of
from dashboard.models import LabRun
from tasks.commands.output import render
from tasks.models import Task, Worker
from tasks.support.audit import Who
from tasks.testing import run_due
from tests.commands import database_url, run
from tests.people import client_of

pytestmark = pytest.mark.django_db(transaction=True)
LAB = "/admin/ops/lab/"


@pytest.fixture(autouse=True)
def _allowed(settings):
    settings.ROWLOCK_LAB = True


def assert_followed_to_its_end(events: list[dict[str, Any]]) -> None:
    """From the middle of a task over the kill to the end of its second attempt, and nothing is left behind."""
    told = [event["what"] for event in events if event["what"] != "changed"]
    assert told[:2] == ["running", "killed"]
    assert told[-3:] == ["back", "taken", "done"]
    versions = [event["version"] for event in events]
    assert versions == sorted(versions)
    assert [event["attempt"] for event in events][-1] == 2
    workers = {event["worker"] for event in events if event["status"] == "PROCESSING"}
    assert len(workers) == 2
    assert not Task.objects.filter(queue_name__startswith="rowlock-drill-").exists()
    assert not Worker.objects.filter(stopped_at=None).exists()


def test_the_row_is_followed_from_the_kill_to_its_end(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", database_url())
    batch = requests.request_runs([Plan("kill_drill", workers=2, items=1, kill=1)], "d" * 22, Who("anna", "page"))
    run_due()
    found = LabRun.objects.get(batch=batch)
    assert (found.state, found.error) == ("finished", "")
    assert_followed_to_its_end(found.spans)
    page = client_of("Viewers").get(f"{LAB}{found.pk}/").text
    assert "killed with SIGKILL" in page
    assert "ms after the kill" in client_of("Viewers").get(LAB).text


def test_the_command_tells_the_same_even_where_it_looks_so_seldom_that_states_are_missed(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", database_url())
    monkeypatch.setattr(drill, "SAMPLE_SECONDS", 2.0)
    outcome = run("kill_drill", "--json")
    assert outcome.status == 0, outcome.stderr
    assert_followed_to_its_end(outcome.data["events"])
    [taken] = [event for event in outcome.data["events"] if event["what"] == "taken"]
    assert outcome.data["recovered_ms"] == taken["ms"]
    told = render(table_of([Event(**event) for event in outcome.data["events"]])).splitlines()
    assert told[0].split() == ["WHAT", "HAPPENED", "AFTER", "THE", "KILL", "STATUS", "VERSION", "ATTEMPT", "WORKER"]
    assert told[-1].startswith("The task has come to its end.")


def test_the_command_is_refused_where_the_lab_is_off(settings):
    settings.ROWLOCK_LAB = False
    outcome = run("kill_drill")
    assert outcome.status == 1
    assert "ROWLOCK_LAB=1" in outcome.stderr


def test_it_is_asked_for_by_a_button_once():
    client = client_of("Operators")
    answers = {client.post(f"{LAB}drill/", {"token": "k" * 22}).url for _ in range(2)}
    [found] = LabRun.objects.all()
    assert answers == {f"{LAB}{found.pk}/"}
    page = client.get(f"{LAB}{found.pk}/").text
    assert "Waits for its turn" in page
    assert "manage.py kill_drill<" in page
    assert f"manage.py stop_lab_run {found.pk}<" in page
    assert "manage.py kill_drill<" in client.get(LAB).text
