"""docs/api-http.md: its client in Python and its requests by curl do what they say, word for word."""

import json
import os
import re
import subprocess
import sys

import pytest

from tasks.models import Intervention, Queue, Task
from tests.dashboard.api.callers import Caller
from tests.databases import ROOT
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = (ROOT / "docs" / "api-http.md").read_text()
[CLIENT] = re.findall(r"^```python\n# rerun_failed.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
[CURL] = re.findall(r"^```shell\n(curl .*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(live_server) -> dict[str, str]:
    """That of a program with the token of an operator."""
    return {**os.environ, "ROWLOCK_URL": live_server.url, "ROWLOCK_TOKEN": Caller("Operators").secret}


def run(argv: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_client_runs_every_failed_task_again(environment):
    for _ in range(52):  # more than a page
        rows.failed()
    completed = rows.completed()
    run([sys.executable, "-c", CLIENT], environment)
    assert Task.objects.filter(status="READY").count() == 52
    completed.refresh_from_db()
    assert completed.status == "COMPLETED"
    entries = Intervention.objects.filter(source="api", action="requeue")
    assert entries.count() == 52
    assert set(entries.values_list("reason", flat=True)) == {"the bank is up again"}


def test_the_client_is_short():
    assert len([line for line in CLIENT.splitlines() if line.strip()]) <= 20


def test_curl_reads_and_pauses_a_queue(environment):
    rows.ready(queue_name="payouts")
    said = run(["bash", "-ec", CURL], environment)
    listed, _length = json.JSONDecoder().raw_decode(said)  # the answer of the second request follows
    assert [queue["name"] for queue in listed["items"]] == ["payouts"]
    assert Queue.objects.get(name="payouts").paused
    assert Intervention.objects.get(source="api").reason == "the bank is down until 9"
