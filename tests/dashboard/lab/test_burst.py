"""A burst from the page: a real worker, one at a time, ended at its limit and with its server."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from django.conf import settings as project

from dashboard import burst
from dashboard.burst import Burst
from dashboard.tasks import count_primes, nap
from tasks.models import CommandRun, Intervention, Task, Worker
from tasks.operations.tokens import new_token
from tests.commands import database_url
from tests.people import client_of
from tests.waiting import wait_until

PAGE = "/admin/ops/burst/"
SERVER = """
import django, sys, time
django.setup()
from dashboard import burst
burst.start(burst.Burst("skip_locked"))
while not burst.latest().pid: time.sleep(0.01)
print(burst.latest().pid, flush=True)
time.sleep(60)
"""

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def allowed(settings, monkeypatch) -> Iterator[None]:
    """Bursts are allowed, work on the test's database, and none is left at the end."""
    settings.ROWLOCK = {"BURST": True}
    monkeypatch.setenv("DATABASE_URL", database_url())
    monkeypatch.setattr(burst, "_latest", None)
    yield
    latest = burst.latest()
    if latest is not None and latest.pid and not latest.is_over:
        psutil.Process(latest.pid).terminate()
        wait_until(lambda: latest.is_over, seconds=30)


@pytest.fixture
def operator():
    return client_of("Operators")


def submit(client, **fields):
    values = {"strategy": "skip_locked", "max_tasks": "10", "limit_seconds": "60", "token": new_token()}
    return client.post(PAGE, {**values, **fields}, follow=True)


def test_a_burst_runs_what_is_due_and_ends(operator, allowed):
    result = count_primes.enqueue(100)
    page = submit(operator, strategy="optimistic", queue_name=count_primes.queue_name)
    assert "A burst with optimistic was started" in page.text
    latest = burst.latest()
    wait_until(lambda: latest.is_over, seconds=40)
    assert (latest.exit_status, latest.was_cut_short) == (0, False)
    assert Task.objects.get(pk=int(result.id)).status == "COMPLETED"
    assert Worker.objects.get().strategy == "optimistic"
    run = CommandRun.objects.get(name=burst.NAME)
    assert (run.outcome, run.argv[:4]) == ("succeeded", ["run_worker", "--burst", "--strategy", "optimistic"])
    assert not [child for child in psutil.Process().children() if child.pid == latest.pid]
    assert f"/admin/ops/schedule/{run.pk}/" in operator.get(PAGE, headers={"HX-Request": "true"}).text
    entry = Intervention.objects.get(target=f"command:{burst.NAME}")
    assert (entry.actor, entry.action) == (
        "anna",
        "burst run_worker --burst --strategy optimistic --queue demo-reports --max-tasks 10",
    )


def test_one_at_a_time_and_ended_at_its_limit(operator, allowed):
    for _ in range(20):
        nap.enqueue(3)
    assert burst.start(Burst("skip_locked", limit_seconds=4))
    assert "One runs already" in submit(operator).text
    latest = burst.latest()
    wait_until(lambda: latest.is_over, seconds=40)
    assert latest.was_cut_short
    assert Task.objects.filter(status="READY").count() >= 15
    assert "ended at its time limit" in operator.get(PAGE).text


def test_it_ends_with_its_server(allowed):
    """kill -9 of the web server: nothing that it started lives on."""
    for _ in range(40):
        nap.enqueue(3)
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    line = [sys.executable, "-c", SERVER]
    with subprocess.Popen(line, cwd=project.BASE_DIR, env=environment, stdout=subprocess.PIPE, text=True) as server:
        child = psutil.Process(int(server.stdout.readline()))
        wait_until(lambda: Task.objects.processing().exists(), seconds=40)
        family = [child, *child.children(recursive=True)]
        server.kill()
    try:
        wait_until(lambda: not [process for process in family if process.is_running()], seconds=25)
    finally:
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    assert len(family) >= 3


def test_a_double_click_is_one_burst(operator, allowed, monkeypatch):
    started = []
    monkeypatch.setattr(burst, "start", lambda asked: started.append(asked) or True)
    token = new_token()
    submit(operator, token=token), submit(operator, token=token)
    assert started == [Burst("skip_locked", None, 10, 60)]
    assert Intervention.objects.count() == 1


def test_where_it_is_not_allowed_the_page_says_so_and_the_command(operator, settings):
    settings.ROWLOCK = {"BURST": False}
    page = operator.get(PAGE).text
    assert "set ROWLOCK_BURST=1" in page
    assert "run_locked rowlock-burst -- run_worker --burst" in page
    assert 'data-action="run-burst"' not in page
    assert submit(operator).status_code == 403
    assert burst.latest() is None or burst.latest().is_over


def test_without_a_setting_it_is_allowed_where_the_lab_is(settings):
    settings.ROWLOCK_LAB = True
    assert burst.is_allowed()
    settings.ROWLOCK_LAB = False
    assert not burst.is_allowed()


def test_a_viewer_may_not(allowed):
    viewer = client_of("Viewers")
    assert "tasks.run_burst" in viewer.get(PAGE).text
    assert submit(viewer).status_code == 403


@pytest.mark.parametrize(
    "fields",
    [{"strategy": "fast"}, {"max_tasks": "0"}, {"limit_seconds": "601"}, {"queue_name": "q" * 300}, {"token": "x"}],
)
def test_what_cannot_be_run_is_refused(operator, allowed, fields, monkeypatch):
    monkeypatch.setattr(burst, "start", lambda asked: pytest.fail("it was started"))
    assert submit(operator, **fields).status_code == 400
