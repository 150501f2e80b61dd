"""A secret argument on its whole way: through a worker that fails over it, into the table, its log, and the pages."""

import io
import json
import logging

import psycopg
import pytest
from django.db import connection
from django.test import Client

from dashboard.attention import inbox
from dashboard.models import Acknowledgement
from tasks.models import BulkRun, Intervention
from tasks.operations import Settings, bulk
from tasks.operations.filters import TaskFilter
from tasks.panels import AttentionLine, Severity
from tasks.support import audit
from tasks.support.audit import Change, Who
from tests.people import client_of, person
from tests.sessions import session
from tests.tasks import rows
from tests.tasks.worker_app import tasks as handlers

SECRET = "sword'fish-4711"


def test_a_worker_neither_keeps_nor_logs_a_secret_that_its_task_fails_over(database, start_worker):
    task = handlers.tell_its_secret
    [task_id] = database.enqueue(task, "visa", SECRET)
    worker = start_worker("--burst")
    assert worker.wait() == 0
    [attempt] = database.rows("SELECT exception_class, traceback FROM tasks_attempt WHERE task_id = %s", task_id)
    assert "card visa: [redacted]" in attempt.traceback
    assert "During handling" in attempt.traceback or "direct cause" in attempt.traceback
    for told in (attempt.traceback, worker.log(), worker.output()):
        assert SECRET not in told
        assert json.dumps(SECRET)[1:-1] not in told
        assert repr(SECRET)[1:-1] not in told


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER ROLE nobody_of_ours PASSWORD '{secret}'",
        "SELECT 1 WHERE '{secret}' = 'password'",
        'SELECT \'{{"token": "{secret}"}}\'::jsonb',
    ],
)
def test_no_page_shows_the_literals_of_a_statement_that_names_a_secret(settings, statement):
    settings.SHARED_LOOK_SECONDS = 0
    text = statement.format(secret=SECRET.replace("'", "''"))
    with session("psql") as conn:
        try:
            conn.execute(text)
        except psycopg.errors.UndefinedObject:
            assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
        page = client_of("Lock administrators").get("/admin/ops/locks/").text
    assert "psql" in page
    assert SECRET.replace("'", "''") not in page.replace("&#x27;", "'")
    assert "fish-4711" not in page


@pytest.mark.django_db
def test_a_page_that_fails_does_not_print_its_form(settings):
    """Django's own report of an error goes to the log and to ADMINS, with what was posted."""
    settings.DEBUG = False
    rows.ready()
    client = client_of("Operators")
    answer = client.post(
        "/admin/password_change/", {"old_password": SECRET, "new_password1": "x", "new_password2": "y"}
    )
    assert SECRET not in answer.text.replace("&#x27;", "'")


@pytest.fixture
def log(monkeypatch):
    """What the process writes to stderr, as the project's settings have it."""
    [handler] = [each for each in logging.getLogger().handlers if type(each) is logging.StreamHandler]
    text = io.StringIO()
    monkeypatch.setattr(handler, "stream", text)
    return text


@pytest.mark.django_db(transaction=True)
def test_a_page_that_fails_over_a_row_does_not_log_the_row(log, monkeypatch):
    """PostgreSQL adds to its error what stands in the row."""
    row = json.dumps({"password": SECRET, "note": "two\nlines"})

    def insert():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO tasks_task (task_path, kwargs, priority) VALUES ('a', %s::jsonb, 500)", [row])

    monkeypatch.setattr("dashboard.task_pages.enqueue.known_tasks", insert)
    client = Client(raise_request_exception=False)
    client.force_login(person("Operators"))
    assert client.get("/admin/tasks/task/enqueue/").status_code == 500
    for told in ("Internal Server Error", "Traceback", "IntegrityError", "tasks_task_priority", "DETAIL:  [redacted]"):
        assert told in log.getvalue()
    assert "fish-4711" not in log.getvalue()


@pytest.mark.django_db
def test_a_secret_in_a_reason_is_kept_nowhere():
    audit.record(connection, Who("anna", "page"), "cancel", [Change("task:1")], f"ran curl --user me:{SECRET}")
    line = AttentionLine("line", "a text", next(iter(Severity)))
    inbox.acknowledge(line, Who("anna", "page"), reason=f"token={SECRET}", lasts=None, size=1)
    bulk.request("cancel", TaskFilter(), 1, Settings(reason=f"pwd={SECRET}"), Who("anna", "page"), "a token")
    kept = [
        *Intervention.objects.order_by("id").values_list("reason", flat=True),
        Acknowledgement.objects.get().reason,
        BulkRun.objects.get().options["reason"],
    ]
    assert kept == [
        "ran curl --user me:[redacted]", "token=[redacted]", "pwd=[redacted]", "token=[redacted]", "pwd=[redacted]",
    ]  # fmt: skip
