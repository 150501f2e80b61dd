"""The address of a channel is found nowhere: no table, page, answer of the API, log or line of the audit has it."""

import logging

import pytest
from django.db import connection
from django.test import Client

from dashboard.alerts.watch import watch
from dashboard.models import AlertChannel
from tasks import panels, testing
from tasks.models import Task
from tasks.panels import AttentionLine, Severity
from tests.commands import run
from tests.dashboard.addresses import walk
from tests.dashboard.api.callers import API, Caller
from tests.dashboard.api.test_matrix import operations, request_of
from tests.dashboard.security.test_security_matrix import address
from tests.people import client_of

pytestmark = pytest.mark.django_db
SECRET = "s3cr3tpa55"
ADDRESS = f"http://user:{SECRET}@127.0.0.1:9/{SECRET}?token={SECRET}"
PAGE = "/admin/ops/alerts/"
FIELDS = {"name": "ops", "address": ADDRESS, "least_severity": "4", "enabled": "on", "reason": "the new room"}
LINE = AttentionLine(key="stale:mail", text="2 tasks are stale.", severity=Severity.STOPPED, size=2)


def pages(client: Client, channel: AlertChannel, task: Task) -> dict[str, str]:
    """Each page with its text, those of the channel and of the task that could not send among them."""
    paths = [address(route, name) for route, name in walk() if name not in ("logout", "set_language")]
    paths += [f"{PAGE}{channel.pk}/", f"/admin/tasks/task/{task.pk}/", "/admin/ops/audit/?target=channel:ops"]
    found = {path: client.get(path).text for path in paths}
    wrong = {**FIELDS, "name": ""}
    found |= {f"POST {path}": client.post(path, wrong).text for path in (f"{PAGE}add/", f"{PAGE}{channel.pk}/")}
    found["delete"] = client.post(f"{PAGE}{channel.pk}/delete/").text
    found["test"] = client.post(f"{PAGE}{channel.pk}/test/", follow=True).text
    return found


def answers(task: Task) -> dict[str, str]:
    """The API's answer to each reading request."""
    document = Client().get(f"{API}/openapi.json").json()
    reads = [(path, operation) for method, path, operation in operations(document) if method == "get"]
    paths = [request_of(document, path, operation)[0] for path, operation in reads]
    caller = Caller(username="root", is_superuser=True)
    return {path: str(caller.get(path)) for path in (*paths, f"/tasks/{task.pk}")}


def tables() -> dict[str, str]:
    """The rows of each table, as text."""
    found = {}
    with connection.cursor() as cursor:
        for name in connection.introspection.table_names():
            cursor.execute(f'SELECT string_agg(row::text, chr(10)) FROM "{name}" AS row')
            found[name] = cursor.fetchone()[0] or ""
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's own
def test_an_address_is_found_nowhere(settings, monkeypatch, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_URLS": (f"json://{SECRET}:{SECRET}@127.0.0.1:9/{SECRET}",)}
    panels.load()
    root = client_of(is_superuser=True)
    root.post(f"{PAGE}add/", FIELDS)
    channel = AlertChannel.objects.get()
    assert channel.address == ADDRESS
    with monkeypatch.context() as lines:
        lines.setattr(panels, "ATTENTION", [lambda snapshot: [LINE]])
        assert watch()
    testing.run_due()
    task = Task.objects.get(unique_key__endswith=":ops")
    assert task.attempt == 1
    said = run("test_alert").stderr + run("list_tasks").stdout + run("show_task", str(task.pk)).stdout
    found = {
        **pages(root, channel, task),
        **answers(task),
        **tables(),
        "logs": caplog.text + "".join(capfd.readouterr()),
        "commands": said,
    }
    assert "The channel ops did not take the message" in found["logs"] + found["commands"]
    assert len(found) > 150
    assert {place for place, text in found.items() if SECRET in text} == set()
