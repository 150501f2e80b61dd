"""Requests that reach no operation get a refusal in the API's form, and no answer is stored."""

import threading

import pytest
from django.test import Client

from dashboard.api import guard
from dashboard.live import seats
from dashboard.task_pages import queues
from tests.dashboard.api.callers import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def operators() -> Caller:
    return Caller("Operators")


@pytest.mark.parametrize("path", ["", "/", "/nothing", "/tasks/", "/tasks/4711/burn", "/tasks/no-number"])
def test_an_address_that_leads_nowhere(operators, path):
    problem = operators.get(path or "/x/")
    assert (operators.status, problem["status"], problem["title"]) == (404, 404, "Not Found")
    assert "openapi.json" in problem["detail"]


def test_a_method_that_is_not_possible_names_those_that_are(operators):
    problem = operators.send("delete", "/tasks", {})
    assert (operators.status, problem["status"]) == (405, 405)
    assert set(operators.response["Allow"].split(", ")) == {"GET", "POST"}


def test_a_body_is_json_and_not_too_large(operators):
    def posted(body: bytes, kind: str = "application/json") -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {operators.secret}", "Idempotency-Key": "k"}
        found = operators.client.post("/api/v1/tasks", body, content_type=kind, headers=headers)
        return found.status_code, found.json()["detail"]

    assert posted(b"task=x", "application/x-www-form-urlencoded")[0] == 415
    assert posted(b"{}", "text/plain")[0] == 415
    assert posted(b"{")[0] == 400
    assert posted(b"\xff")[0] == 400
    for deep in (b"[" * 200_000, b'{"a":' * 200_000, b'{"args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        assert posted(deep)[0] in (400, 422)
    many = b'{"task_path": "x", "args": [' + b"[]," * 300_000 + b"[]]}"
    assert posted(many)[0] == 422
    assert posted(b'{"task_path": "x", "priority": ' + b"9" * 900_000 + b"}")[0] in (400, 422)
    assert posted(b" " * (guard.MOST_BODY + 1))[0] == 413
    assert posted(b" " * 3 * guard.MOST_BODY)[0] == 413, "beyond Django's own limit"
    status, detail = posted(b"{}")
    assert (status, "faults" in detail) == (422, True)


def test_no_answer_is_stored_and_no_cookie_is_set_or_needed(operators):
    client = Client(enforce_csrf_checks=True)
    headers = {"Authorization": f"Bearer {operators.secret}", "Idempotency-Key": "k"}
    for found in (
        client.get("/api/v1/tasks", headers=headers),
        client.get("/api/v1/tasks"),
        client.post("/api/v1/tasks", {}, content_type="application/json", headers=headers),
    ):
        assert found.status_code in (200, 401, 422)
        assert "no-store" in found["Cache-Control"]
        assert not found.cookies


def test_refusals_are_english_whatever_the_client_reads(operators):
    headers = {"Authorization": f"Bearer {operators.secret}", "Accept-Language": "ru"}
    found = Client().get("/api/v1/tasks/4711", headers=headers)
    assert "does not exist" in found.json()["detail"]


@pytest.mark.parametrize("path", ["/schedules/nowhere/run", "/workers/nobody/stop"])
def test_a_row_that_is_not_there_is_404(operators, path):
    problem = operators.post(path)
    assert (operators.status, "nowhere" in problem["detail"] or "nobody" in problem["detail"]) == (404, True)


@pytest.mark.parametrize("fault", [KeyError("sentence"), IndexError("no such slot"), LookupError("encoding")])
def test_a_fault_of_ours_is_no_row_that_is_not_there(operators, monkeypatch, caplog, fault):
    def numbers():
        raise fault

    monkeypatch.setattr(queues, "numbers", numbers)
    operators.client.raise_request_exception = False
    operators.get("/queues/mail")
    assert operators.status == 500
    assert fault in [record.exc_info[1] for record in caplog.records if record.exc_info]


def test_who_finds_no_free_thread_is_told_so_in_the_same_form(operators, monkeypatch):
    monkeypatch.setattr(seats, "_seats", threading.Semaphore(0))
    problem = operators.get("/tasks")
    assert (operators.status, problem["status"], operators.response["Retry-After"]) == (503, 503, "2")
