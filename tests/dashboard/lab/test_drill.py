"""The kill drill: a real worker dies, its row comes back, and every version of it was seen."""

import pytest

from dashboard.lab import drill, records
from dashboard.lab.plan import Plan
from dashboard.models import LabRun
from tasks.audit import Who
from tasks.models import Task, Worker
from tasks.testing import run_due
from tests.commands import database_url
from tests.people import client_of

pytestmark = pytest.mark.django_db(transaction=True)
LAB = "/admin/ops/lab/"


@pytest.fixture(autouse=True)
def _allowed(settings):
    settings.ROWLOCK_LAB = True


@pytest.mark.parametrize("look_seconds", [drill.LOOK_SECONDS, 2.0], ids=["close", "so seldom that states are missed"])
def test_the_row_is_followed_from_the_kill_to_its_end(monkeypatch, look_seconds):
    monkeypatch.setenv("DATABASE_URL", database_url())
    monkeypatch.setattr(drill, "LOOK_SECONDS", look_seconds)
    batch = records.ask([Plan("kill_drill", workers=2, items=1, kill=1)], "d" * 22, Who("anna", "page"))
    run_due()
    run = LabRun.objects.get(batch=batch)
    assert (run.state, run.error) == ("finished", "")
    told = [event["what"] for event in run.spans if event["what"] != "changed"]
    assert told[:2] == ["running", "killed"]
    assert told[-3:] == ["back", "taken", "done"]
    versions = [event["version"] for event in run.spans]
    assert versions == sorted(versions)
    assert [event["attempt"] for event in run.spans][-1] == 2
    workers = {event["worker"] for event in run.spans if event["status"] == "PROCESSING"}
    assert len(workers) == 2
    assert not Task.objects.filter(queue_name__startswith="rowlock-drill-").exists()
    assert not Worker.objects.filter(stopped_at=None).exists()
    page = client_of("Viewers").get(f"{LAB}{run.pk}/").text
    assert "killed with SIGKILL" in page
    assert "ms after the kill" in client_of("Viewers").get(LAB).text


def test_it_is_asked_for_by_a_button_once():
    client = client_of("Operators")
    answers = {client.post(f"{LAB}drill/", {"token": "k" * 22}).url for _ in range(2)}
    [run] = LabRun.objects.all()
    assert answers == {f"{LAB}{run.pk}/"}
    assert "Waits for its turn" in client.get(f"{LAB}{run.pk}/").text
