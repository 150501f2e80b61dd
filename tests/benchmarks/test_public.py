"""Rowlock's adapter for the public benchmark speaks its protocol: it starts, runs what it is told to, and stops."""

import itertools
import json
import os
import subprocess
import sys

import psutil
import pytest

from tests.benchmarks.public.cells import CELLS, metric
from tests.databases import ROOT
from tests.waiting import wait_until

METRICS = {"claim_p50_ms", "claim_p95_ms", "claim_p99_ms", "enqueue_rate", "completion_rate", "queue_depth"}
SAMPLES, SECONDS = 7, 30  # so many each second


@pytest.fixture
def adapter(database, tmp_path):
    variables = {
        "DATABASE_URL": database.url,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "ROWLOCK_APPS": "tests.benchmarks.public",
        "PRODUCER_PACING": "harness",
        "SAMPLE_EVERY_S": "1",
        "WORKER_COUNT": "2",
    }
    argv = [sys.executable, "-m", "tests.benchmarks.public.run_rowlock"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **variables}, stderr=log, **pipes)
    with process:
        yield process
        process.kill()


def test_the_adapter_runs_a_task_and_reports_it(adapter, database, tmp_path):
    described = json.loads(adapter.stdout.readline())
    assert described["kind"] == "descriptor"
    assert (
        described["event_tables"]
        == json.loads((ROOT / "tests/benchmarks/public/adapter.json").read_text())["event_tables"]
    )
    adapter.stdin.write("ENQUEUE 1\n")
    samples = {}
    for line in itertools.islice(adapter.stdout, SECONDS * SAMPLES):
        sample = json.loads(line)
        samples[sample["metric"]] = sample["value"]
        if samples.get("completion_rate") and samples.keys() >= METRICS:
            break
    assert samples["claim_p50_ms"] > 0, (tmp_path / "log").read_text()
    adapter.terminate()
    assert adapter.wait(30) == 0
    assert "0 unfinished, 0 failed" in (tmp_path / "log").read_text()
    assert database.rows("SELECT status, count(*) FROM tasks_task GROUP BY 1") == [("COMPLETED", 1)]


@pytest.mark.chaos
def test_a_killed_adapter_takes_its_worker_along(adapter):
    adapter.stdout.readline()
    [worker] = [child for child in psutil.Process(adapter.pid).children() if "run_worker" in child.cmdline()]
    adapter.kill()
    wait_until(lambda: not worker.is_running())


def test_a_system_that_completes_nothing_after_the_chaos_has_not_recovered():
    """As the harness's summary says it."""
    assert CELLS["crash"].says({"phases": {"recovery": {"chaos_recovery_time_s": None}}}) == "not recovered"
    assert CELLS["crash"].says({"phases": {}}) == "not recovered"
    assert (
        metric({"phases": {"clean": {"metrics": {"completion_rate": {"median": 5}}}}}, "clean", "completion_rate") == 5
    )
