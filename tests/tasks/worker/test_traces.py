"""One trace from the request to the statement, through a real worker and the SDK of OpenTelemetry."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict

import psycopg
import pytest

from dashboard.locks import activity, attribution
from dashboard.locks.limits import Names
from tests.processes import ROOT
from tests.tasks.traced_app import tasks
from tests.waiting import wait_until

APP = "tests.tasks.traced_app"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# As if OpenTelemetry was not installed; whoever asks for it is told on stderr.
REFUSAL = """
import sys

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            print("refused", name, file=sys.stderr)
            raise ModuleNotFoundError(name)

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


def python(database, *arguments, **variables):
    """Run Python on the database."""
    environment = {**os.environ, "DATABASE_URL": database.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    environment |= {name: str(value) for name, value in variables.items()}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("options", [("--threads", 2, "--coroutines", 2), ("--strategy", "pessimistic")])
def test_request_enqueue_run_and_statement_are_one_trace(database, start_worker, tmp_path, options):
    path = tmp_path / "spans"
    request = python(database, "-m", f"{APP}.request", **variables(path))
    assert request.returncode == 0, request.stderr
    worker = start_worker("--burst", "-v0", *options, **variables(path), ROWLOCK_LOG_FORMAT="json")
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
    check_lines([json.loads(line) for line in worker.log().splitlines()], processed)
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


def check_lines(lines, processed):
    """Every line is JSON; those of a handler, and of its failure, name the attempt, the worker and the trace."""
    runs = {
        (run["attributes"]["messaging.message.id"], run["attributes"]["rowlock.attempt"]): run
        for name in ("look", "look_async", "fail")
        for run in processed[name]
    }
    of_handlers = {(str(line["task_id"]), line["attempt"]): line for line in lines if "task_id" in line}
    assert runs.keys() <= of_handlers.keys()
    for key, run in runs.items():
        line = of_handlers[key]
        assert line["trace"] == run["context"]["trace_id"][2:]
        assert line["worker"] == run["attributes"]["messaging.client.id"]
        is_failure = line["logger"] != "shop"
        assert line["level"] == ("ERROR" if is_failure else "INFO")
        assert ("wrong password [redacted]" in line.get("traceback", "")) == is_failure


def test_a_tick_begins_a_trace_and_that_of_sql_goes_on(database, start_worker, tmp_path):
    path = tmp_path / "spans"
    database.connection.execute("SELECT rowlock_enqueue(%s, traceparent => %s)", [tasks.pass_on.module_path, TRACE])
    database.connection.execute(
        "INSERT INTO tasks_schedule (name, task_path, every_seconds, next_at, overlap)"
        " VALUES ('looks', %s, 3600, now(), 'allow')",
        [tasks.look.module_path],
    )
    worker = start_worker("--max-tasks", 3, **variables(path))
    assert worker.wait() == 0
    spans = spans_in(path)
    [passed_on] = [run for run in spans.named("process default") if run["parent_id"] == f"0x{TRACE[36:52]}"]
    assert passed_on["context"]["trace_id"] == f"0x{TRACE[3:35]}"
    [tick] = [span for span in spans.named("publish default") if span["parent_id"] is None]
    assert len(spans.children_of(tick, "process default")) == 1


def test_nothing_needs_the_extra(database, start_worker, tmp_path):
    """Without it a task passes on the trace of its row, and no page or command asks for it."""
    (tmp_path / "sitecustomize.py").write_text(REFUSAL)
    without = {"ROWLOCK_APPS": APP, "PYTHONPATH": tmp_path}
    database.connection.execute("SELECT rowlock_enqueue(%s, traceparent => %s)", [tasks.pass_on.module_path, TRACE])
    worker = start_worker("--burst", **without)
    assert worker.wait() == 0
    assert "refused opentelemetry" in worker.log()
    rows = database.rows("SELECT status, traceparent, return_value FROM tasks_task ORDER BY id")
    assert rows == [("COMPLETED", TRACE, None), ("COMPLETED", TRACE, tasks.SEEN)]
    environment = {**os.environ, "DATABASE_URL": database.url, **{name: str(value) for name, value in without.items()}}
    ran = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (ran.returncode, "opentelemetry" in ran.stderr) == (0, False), ran.stderr


def test_the_lock_tree_names_the_task_and_the_trace_of_each_thread(database, start_worker, tmp_path):
    database.connection.execute("INSERT INTO tasks_queue (name) VALUES ('mail')")
    traces = {f"00-{number:032x}-b7ad6b7169203331-01" for number in (1, 2)}
    enqueue = "SELECT rowlock_enqueue(%s, '[\"mail\"]', traceparent => %s)"
    ids = {trace: database.value(enqueue, tasks.take.module_path, trace) for trace in traces}
    with psycopg.connect(database.url, autocommit=True) as page, psycopg.connect(database.url) as other:
        other.execute("SELECT FROM tasks_queue WHERE name = 'mail' FOR UPDATE")
        worker = start_worker("--burst", "--threads", 2, **variables(tmp_path / "spans"))

        def both_are_named():
            seen = activity.read(page)
            work = attribution.behind(seen, (), attribution.running_tasks(Names(page)))
            waiting = {session.pid: work[session.pid] for session in seen.blocked if session.pid in work}
            named = {pid: each for pid, each in waiting.items() if each.task and each.traceparent}
            return named if len(named) == 2 else None

        found = wait_until(both_are_named, seconds=60)
        address = {"ROWLOCK_TRACE_URL": "https://traces.example/{trace_id}"}
        tree = python(database, "manage.py", "show_locks", "--tree", **address).stdout
        data = json.loads(python(database, "manage.py", "show_locks", "--json", **address).stdout)
        shown = python(database, "manage.py", "show_task", str(min(ids.values())), **address).stdout
    assert worker.wait() == 0
    assert {each.traceparent[3:35]: each.task.id for each in found.values()} == {
        trace[3:35]: task_id for trace, task_id in ids.items()
    }
    assert all(f"https://traces.example/{trace[3:35]}" in tree for trace in traces)
    told = {(session["task_id"], session["trace_id"], session["trace_url"]) for session in data["sessions"]}
    assert told >= {(id, trace[3:35], f"https://traces.example/{trace[3:35]}") for trace, id in ids.items()}
    assert re.search(r"trace +https://traces.example/[0-9a-f]{32}\n", shown)
