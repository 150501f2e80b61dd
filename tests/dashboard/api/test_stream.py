"""The events of a task over the real web server: they come as they happen, and a stream ends with its client."""

import contextlib
import os
import time

import psutil
import pytest
from django.db import connection

from dashboard.api import events
from tasks import operations
from tasks.models import Task
from tasks.support.audit import Who
from tests import databases
from tests.dashboard.api.callers import Caller
from tests.dashboard.api.streams import following, next_event
from tests.tasks import rows
from tests.waiting import wait_until
from tests.web import gunicorn

PATIENCE_SECONDS = 8  # the web server ends what is still there after ten
pytestmark = pytest.mark.django_db(transaction=True)


def test_events_come_as_they_happen_and_a_stream_ends_with_its_client():
    site = databases.named(os.environ["DATABASE_URL"], str(connection.settings_dict["NAME"]))
    caller, task = Caller("Operators"), rows.ready()
    with gunicorn(site) as (web, port):
        with following(port, caller.secret, task.pk) as answer:
            assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
            name, seen = next_event(answer)
            assert (name, seen["status"], seen["version"]) == ("task", "READY", task.version)
            operations.edit([task.pk], Who("anna", "page"), operations.Settings(priority=7))
            name, seen = next_event(answer)
            assert (name, seen["priority"]) == ("task", 7)
            operations.cancel([task.pk], Who("anna", "page"))
            assert next_event(answer)[1]["status"] == "CANCELLED"
            assert next_event(answer) == ("end", {"id": task.pk, "status": "CANCELLED"})
            assert next_event(answer) == ("over", {})
        left_open(port, caller)
        stopped_at_once(web, port, caller)


def left_open(port: int, caller: Caller) -> None:
    """As many clients as one person may have left before anything happened: each seat is free before the next beat."""
    task = rows.ready()
    for _ in range(events.STREAMS_OF_ONE):
        with following(port, caller.secret, task.pk) as answer:
            assert next_event(answer)[0] == "task"
    wait_until(lambda: is_seated(port, caller, task), seconds=events.BEAT_SECONDS * 0.8)


def is_seated(port: int, caller: Caller, task: Task) -> bool:
    with following(port, caller.secret, task.pk) as answer:
        return answer.status == 200


def stopped_at_once(web: psutil.Process, port: int, caller: Caller) -> None:
    """The web server stops although a client follows a task that waits for ever."""
    task, opened = rows.ready(), []
    with contextlib.ExitStack() as stack:

        def is_followed() -> bool:
            opened.append(stack.enter_context(following(port, caller.secret, task.pk)))
            return opened[-1].status == 200

        wait_until(is_followed, seconds=30)
        assert next_event(opened[-1])[0] == "task"
        web.terminate()
        began = time.monotonic()
        assert next_event(opened[-1]) == ("over", {})
        assert time.monotonic() - began < PATIENCE_SECONDS
