"""One trace from the request to the statement, through a real worker and the SDK of OpenTelemetry."""

import json
import os
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.processes import ROOT
from tests.tasks.traced_app import tasks

APP = "tests.tasks.traced_app"
PATH = f"{APP}.tasks"
# Refuses to import OpenTelemetry, as if it were not installed, and lists at the end what is loaded.
WITHOUT = """
import atexit, os, sys

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)

if os.environ.get("TEST_WITHOUT"):
    sys.meta_path.insert(0, Refusal())
"""


class Spans(list):
    """The spans of a file, as dictionaries."""

    def named(self, name):
        return [span for span in self if span["name"] == name]

    def children_of(self, span, name):
        return [child for child in self.named(name) if child["parent_id"] == span["context"]["span_id"]]


def spans_in(path):
    return Spans(map(json.loads, path.read_text().splitlines()))


def variables(path):
    return {"ROWLOCK_APPS": APP, "TEST_SPANS": path}


def run_request(database, path):
    environment = {
        **os.environ,
        "DATABASE_URL": database.url,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        **{name: str(value) for name, value in variables(path).items()},
    }
    subprocess.run([sys.executable, "-m", f"{APP}.request"], cwd=ROOT, env=environment, check=True)


@pytest.mark.parametrize("options", [(), ("--threads", 2, "--coroutines", 2), ("--strategy", "pessimistic")])
def test_request_enqueue_run_and_statement_are_one_trace(database, start_worker, tmp_path, options):
    path = tmp_path / "spans"
    run_request(database, path)
    worker = start_worker("--burst", *options, **variables(path), ROWLOCK_LOG_FORMAT="json")
    assert worker.wait() == 0
    spans = spans_in(path)
    # The worker's start asks the database too, outside any trace.
    assert len({span["context"]["trace_id"] for span in spans if span["parent_id"] or span["name"] != "SQL"}) == 1
    [request] = spans.named("POST /orders/")
    published = spans.children_of(request, "publish default")
    assert [span["kind"] for span in published] == ["SpanKind.PRODUCER"] * 4
    processed = defaultdict(list)
    for span in published:
        for run in spans.children_of(span, "process default"):
            processed[run["attributes"]["code.function.name"].rpartition(".")[2]].append(run)
    assert {name: len(runs) for name, runs in processed.items()} == {
        "look": 1, "look_async": 1, "pass_on": 1, "fail": 2
    }  # fmt: skip
    for name in ("look", "look_async"):
        statements = [span["attributes"]["db.query.text"] for span in spans.children_of(processed[name][0], "SQL")]
        assert len([text for text in statements if text.endswith(tasks.SEEN)]) == 1
    [again] = spans.children_of(processed["pass_on"][0], "publish default")
    assert len(spans.children_of(again, "process default")) == 1
    check_failures(database, processed["fail"])
    check_statements(database, processed)
    assert "hunter2" not in path.read_text()


def check_failures(database, runs):
    """Both attempts are failed spans; the second is linked to the first, which its attempt's row names."""
    first, second = sorted(runs, key=lambda run: run["attributes"]["rowlock.attempt"])
    assert [link["context"]["span_id"] for link in second["links"]] == [first["context"]["span_id"]]
    assert first["links"] == []
    for run in (first, second):
        assert (run["status"]["status_code"], run["attributes"]["error.type"]) == ("ERROR", "builtins.ValueError")
        assert "ValueError: wrong password" in run["events"][0]["attributes"]["exception.stacktrace"]
    rows = database.rows("SELECT number, traceparent FROM tasks_attempt ORDER BY number")
    assert [row.traceparent[36:52] for row in rows] == [run["context"]["span_id"][2:] for run in (first, second)]


def check_statements(database, processed):
    """The server sees the task and the trace before the statement of a handler."""
    rows = database.rows("SELECT id, task_path, return_value FROM tasks_task WHERE return_value IS NOT NULL")
    found = {row.return_value.partition(" */")[0] for row in rows if row.return_value}
    for name in ("look", "look_async"):
        [run] = processed[name]
        task_id, context = run["attributes"]["messaging.message.id"], run["context"]
        trace = f"00-{context['trace_id'][2:]}-{context['span_id'][2:]}-"
        assert f"/* rowlock task={task_id} traceparent={trace}" in {text[:-2] for text in found}  # without its flags


def test_a_tick_of_a_schedule_begins_a_trace(database, start_worker, tmp_path):
    path = tmp_path / "spans"
    database.connection.execute(
        "INSERT INTO tasks_schedule (name, task_path, every_seconds, next_at, overlap)"
        " VALUES ('looks', %s, 3600, now(), 'allow')",
        [f"{PATH}.look"],
    )
    worker = start_worker("--max-tasks", 1, **variables(path))
    assert worker.wait() == 0
    spans = spans_in(path)
    [published], [run] = spans.named("publish default"), spans.named("process default")
    assert (published["parent_id"], run["parent_id"]) == (None, published["context"]["span_id"])


def test_a_trace_that_sql_began_goes_on(database, start_worker, tmp_path):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    database.connection.execute("SELECT rowlock_enqueue(%s, traceparent => %s)", [f"{PATH}.look", trace])
    worker = start_worker("--burst", **variables(tmp_path / "spans"))
    assert worker.wait() == 0
    [run] = spans_in(tmp_path / "spans").named("process default")
    assert (run["context"]["trace_id"], run["parent_id"]) == (f"0x{trace[3:35]}", f"0x{trace[36:52]}")
