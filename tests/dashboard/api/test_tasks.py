"""Tasks in the API: the page's filters, verbs, versions and refusals."""

import json
import threading

import pytest
from django.db import connection
from django.http import HttpRequest
from django.test.utils import CaptureQueriesContext

from dashboard.api import events
from dashboard.api.base import Renderer
from dashboard.live import seats
from tasks.models import Intervention, Task
from tasks.operations import bulk, search
from tests.dashboard.api.callers import Caller
from tests.tasks import handlers, rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def operators():
    return Caller("Operators")


def test_the_list_is_that_of_the_page_and_goes_on_from_its_cursor(operators):
    failed = [rows.failed(queue_name="mail") for _ in range(3)]
    rows.ready()
    first = operators.get("/tasks?status=FAILED&queue=mail&limit=2")
    assert [item["id"] for item in first["items"]] == [failed[2].pk, failed[1].pk]
    rest = operators.get(f"/tasks?status=FAILED&queue=mail&limit=2&cursor={first['next']}")
    assert ([item["id"] for item in rest["items"]], rest["next"]) == ([failed[0].pk], None)
    assert first["items"][0]["sentence"]


def test_a_page_of_the_list_costs_few_statements_and_reads_no_payload(operators, monkeypatch):
    monkeypatch.setattr(search, "FIRST_WINDOW", 10**9)  # one, however many ids the tests before have used
    for _ in range(3):
        rows.completed()
        rows.failed(kwargs={"note": "needle"})
    operators.get("/tasks")  # the use of the token is noted once a minute
    with CaptureQueriesContext(connection) as queries:
        assert len(operators.get("/tasks")["items"]) == 6
    said = "\n".join(query["sql"] for query in queries)
    assert len(queries) <= 12, said
    assert ('"tasks_task"."version"' in said, '"tasks_task"."kwargs"' in said) == (True, False)
    with CaptureQueriesContext(connection) as queries:
        assert len(operators.get("/tasks?q=needle")["items"]) == 3
    assert len(queries) <= 12, "the payloads that a search looks at come with their rows"


def test_half_a_character_of_a_decrypted_payload_is_written_as_json():
    text = Renderer().render(HttpRequest(), {"args": ["\ud800", float("inf")]}, response_status=200)
    assert json.loads(text)["args"][0] == "\ud800"


@pytest.mark.parametrize(
    "query", ["status=NO", "older_than=soon", "limit=0", "limit=501", "cursor=x", "failure=zz", "staus=FAILED"]
)
def test_a_filter_that_cannot_be_read_is_named(operators, query):
    problem = operators.get(f"/tasks?{query}")
    assert (operators.status, bool(problem["faults"])) == (422, True), problem


def test_a_task_has_its_version_as_etag_and_shows_no_secret(operators):
    task = rows.failed(kwargs={"password": "hunter2", "n": 1})
    found = operators.get(f"/tasks/{task.pk}")
    assert operators.response["ETag"] == f'"{task.version}"'
    assert (found["kwargs"]["n"], "hunter2" in operators.response.text) == (1, False)
    missing = operators.get("/tasks/999999")
    assert (operators.status, "pruned" in missing["detail"]) == (404, True)


def test_enqueue(operators):
    made = operators.post("/tasks", {"task_path": handlers.add.module_path, "args": [1, 2], "reason": "by hand"})
    assert (operators.status, made["is_new"]) == (201, True)
    assert Task.objects.get(pk=made["id"]).args == [1, 2]
    entry = Intervention.objects.get(action="enqueue")
    assert (entry.actor, entry.source, entry.reason) == (f"anna ({operators.name})", "api", "by hand")


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({"task_path": "no.such"}, 422, "body.task_path"),
        ({"task_path": "tasks.tasks.run_bulk_action"}, 422, "body.task_path"),
        ({"task_path": handlers.add.module_path, "priority": 101}, 422, "body.priority"),
        ({"task_path": handlers.add.module_path, "args": "text"}, 422, "body.args"),
        ({"args": []}, 422, "body.task_path"),
        ([], 422, "body"),
        ({"task_path": handlers.add.module_path, "argz": []}, 422, "body.argz"),
    ],
)
def test_a_wrong_body_names_each_fault(operators, body, status, path):
    problem = operators.post("/tasks", body)
    assert operators.status == status, problem
    assert path in [fault["path"] for fault in problem["faults"]], problem
    assert not Task.objects.exists()


def test_a_write_needs_the_version_that_was_seen(operators):
    task = rows.failed()
    operators.post(f"/tasks/{task.pk}/requeue")
    assert operators.status == 428
    problem = operators.post(f"/tasks/{task.pk}/requeue", version=task.version + 1)
    assert (operators.status, "review again" in problem["detail"]) == (412, True)
    assert operators.response["ETag"] == f'"{task.version}"'
    assert (problem["now"]["status"], problem["since"]) == ("FAILED", [])
    done = operators.post(f"/tasks/{task.pk}/requeue", {"reason": "the bank is back"}, version=task.version)
    assert (operators.status, done["done"], done["task"]["status"]) == (200, True, "READY")
    assert Intervention.objects.get(action="requeue").reason == "the bank is back"
    problem = operators.post(f"/tasks/{task.pk}/edit", {"priority": 1}, version=task.version)
    assert (operators.status, problem["now"]["status"]) == (412, "READY")
    assert [(one["action"], one["reason"]) for one in problem["since"]] == [("requeue", "the bank is back")]
    assert Task.objects.get(pk=task.pk).priority == task.priority


@pytest.mark.parametrize("match", ["", "seven", '"-1"', 'W/"7"'])
def test_a_version_that_is_none_is_refused(operators, match):
    task = rows.failed()
    headers = {"Authorization": f"Bearer {operators.secret}", "Idempotency-Key": "k", "If-Match": match}
    response = operators.client.post(
        f"/api/v1/tasks/{task.pk}/requeue", {}, content_type="application/json", headers=headers
    )
    assert response.status_code == 400


def test_edit_cancel_and_recover(operators):
    task = rows.ready()
    moved = operators.post(f"/tasks/{task.pk}/edit", {"queue": "slow", "priority": 7}, version=task.version)
    assert (moved["task"]["queue"], moved["task"]["priority"]) == ("slow", 7)
    operators.post(f"/tasks/{task.pk}/cancel", {"reason": "twice"}, version=moved["task"]["version"])
    assert Task.objects.get(pk=task.pk).status == "CANCELLED"
    stale = rows.processing(rows.dead_worker())
    operators.post(f"/tasks/{stale.pk}/recover", version=stale.version)
    assert (operators.status, Task.objects.get(pk=stale.pk).status) == (200, "READY")
    problem = operators.post(f"/tasks/{task.pk}/recover", version=Task.objects.get(pk=task.pk).version)
    assert (operators.status, f"#{task.pk} not changed" in problem["detail"]) == (409, True)


def test_a_running_task_is_taken_only_with_a_reason(operators):
    task = rows.processing("w1")
    operators.post(f"/tasks/{task.pk}/requeue", {"force": True}, version=task.version)
    assert operators.status == 422
    assert Task.objects.get(pk=task.pk).status == "PROCESSING"


def test_what_the_page_asks_for_is_asked_for_here(operators):
    task = rows.ready()
    for path, body in (("cancel", {}), ("cancel", {"reason": " "}), ("edit", {}), ("requeue", {"force": True})):
        problem = operators.post(f"/tasks/{task.pk}/{path}", body, version=task.version)
        assert (operators.status, bool(problem["faults"])) == (422, True), (path, problem)
    assert Task.objects.get(pk=task.pk).version == task.version


def test_a_task_is_put_aside_and_back(operators):
    task = rows.ready()
    aside = operators.post(f"/tasks/{task.pk}/quarantine", {"reason": "poison"}, version=task.version)
    assert aside["task"]["queue"] == "quarantine"
    back = operators.post(f"/tasks/{task.pk}/put_back", version=aside["task"]["version"])
    assert (operators.status, back["task"]["queue"]) == (200, task.queue_name)


def test_the_oldest_come_first_if_wished(operators):
    made = [rows.ready().pk for _ in range(3)]
    first = operators.get("/tasks?sort=id&limit=2")
    rest = operators.get(f"/tasks?sort=id&limit=2&cursor={first['next']}")
    assert [item["id"] for item in first["items"] + rest["items"]] == made
    assert rest["next"] is None


def test_a_bulk_run_carries_out_what_was_previewed(operators):
    for _ in range(3):
        rows.failed()
    preview = operators.get("/tasks/bulk/requeue?status=FAILED")
    assert (preview["number"], preview["by_status"]) == (3, {"FAILED": 3})
    later = rows.failed()
    run = operators.post("/tasks/bulk/requeue", {"token": preview["token"], "reason": "bank"})
    assert operators.status == 202, run
    again = operators.post("/tasks/bulk/requeue", {"token": preview["token"], "reason": "bank"})
    assert again["id"] == run["id"], "one run for a preview"
    assert (run["action"], run["filter"]) == ("requeue", "status=FAILED")
    bulk.carry_out(run["id"])
    assert Task.objects.get(pk=later.pk).status == "FAILED", "it has come since"
    assert operators.get(f"/tasks/runs/{run['id']}")["done"] == 3
    entries = Intervention.objects.filter(action="requeue").values_list("actor", "source", "reason")
    assert set(entries) == {(f"anna ({operators.name})", "api", "bank")}
    operators.post("/tasks/bulk/cancel", {"token": preview["token"]})
    assert operators.status == 422, "the preview of another action"
    operators.post("/tasks/bulk/requeue", {"token": preview["token"][:-2] + "xx"})
    assert operators.status == 422


def test_no_bulk_run_reaches_every_task(operators):
    rows.failed()
    for query in ("", "?staus=FAILED", "?status=COMPLETED"):
        problem = operators.get(f"/tasks/bulk/requeue{query}")
        assert (operators.status, bool(problem["faults"])) == (422, True), query


def test_a_bulk_run_is_stopped(operators):
    rows.failed()
    token = operators.get("/tasks/bulk/cancel?status=FAILED")["token"]
    run = operators.post("/tasks/bulk/cancel", {"token": token, "reason": "not wanted"})
    assert operators.post(f"/tasks/runs/{run['id']}/stop") == {"changed": True}
    assert operators.post(f"/tasks/runs/{run['id']}/stop") == {"changed": False}
    assert operators.get(f"/tasks/runs/{run['id']}")["finished_at"]


def test_events_follow_a_task_to_its_end(operators):
    task = rows.completed()
    operators.get(f"/tasks/{task.pk}/events")
    text = b"".join(operators.response.streaming_content).decode()
    assert "event: task" in text
    assert '"status": "COMPLETED"' in text
    assert "event: end" in text


def test_streams_are_few_and_leave_their_seats(operators, monkeypatch):
    """Of one person there are fewer still, with all tokens. A stream holds a thread, which pages cannot take too."""
    looking = threading.Semaphore(events.STREAMS)
    monkeypatch.setattr(seats, "_seats", looking)
    task, held = rows.completed(), []

    def follow(caller: Caller) -> str:
        """Why there is no stream."""
        problem = caller.get(f"/tasks/{task.pk}/events")
        if caller.status == 200:
            held.append(caller.response)
        return problem["detail"] if problem else ""

    monkeypatch.setattr(events, "STREAMS", 3)
    colleague = Caller("Viewers", username="ben")
    assert [follow(operators) for _ in range(events.STREAMS_OF_ONE)] == ["", ""]
    assert "2 streams of yours" in follow(Caller("Operators"))
    assert follow(colleague) == ""
    assert "3 streams are open" in follow(colleague)
    assert "Retry-After" in colleague.response
    assert (looking.acquire(blocking=False), looking.acquire(blocking=False)) == (True, False)
    for response in held:
        assert b"".join(response.streaming_content)
    assert [looking.acquire(blocking=False) for _ in range(3)] == [True, True, True]
    monkeypatch.setattr(seats, "_seats", None)
    assert follow(operators) == ""
    held[-1].close()
