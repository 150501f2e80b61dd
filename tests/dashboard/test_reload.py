"""gunicorn is reloaded (HUP), as at every deployment, while people click: no click is lost or done twice."""

import contextlib
import http.client
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import psutil
import pytest
from django.db import connection

from tasks.models import Intervention, Task
from tasks.operations.tokens import new_token
from tests import databases, processes
from tests.people import client_of
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until
from tests.web import gunicorn

pytestmark = pytest.mark.django_db(transaction=True)
CSRF = "a" * 32
CLIENTS = 4
RELOADS = 2
ENQUEUE = "/admin/tasks/task/enqueue/"


def test_actions_go_on_while_the_web_server_is_reloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWLOCK_APPS", processes.HANDLERS_APP)
    cookie = f"sessionid={client_of('Operators').cookies['sessionid'].value}; csrftoken={CSRF}"
    url = databases.named(os.environ["DATABASE_URL"], str(connection.settings_dict["NAME"]))
    numbers, is_over = itertools.count(1), threading.Event()
    answers: dict[int, int] = {}

    def click(port: int) -> None:
        while not is_over.is_set():
            number = next(numbers)
            answers[number] = enqueue(port, cookie, number)

    with gunicorn(url) as (web, port), clicking(CLIENTS, click, port, is_over):
        for _ in range(RELOADS):
            before = len(answers)
            wait_until(lambda before=before: len(answers) > before + CLIENTS)
            reload(web)
        wait_until(lambda: len(answers) > before + 2 * CLIENTS)

    done = list(Task.objects.values_list("args", flat=True))
    assert set(answers.values()) <= {302}
    assert sorted(number for [number] in done) == sorted(answers)
    assert Intervention.objects.count() == len(answers)


def enqueue(port: int, cookie: str, number: int) -> int:
    """One click on a connection of its own, as a reverse proxy brings it; the status of the answer."""
    form = {"task": handlers.work.module_path, "arg-seconds": number, "token": new_token()}
    headers = {"Host": "localhost", "Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as asked:
        asked.request("POST", ENQUEUE, urlencode({**form, "csrfmiddlewaretoken": CSRF}), headers)
        answer = asked.getresponse()
        answer.read()
        return answer.status


@contextlib.contextmanager
def clicking(number: int, click, port: int, is_over: threading.Event) -> Iterator[None]:
    """So many people click meanwhile; an error of any of them is raised at the end."""
    with ThreadPoolExecutor(number) as pool:
        people = [pool.submit(click, port) for _ in range(number)]
        try:
            yield
        finally:
            is_over.set()
            for person in people:
                person.result(60)


def reload(web: psutil.Process) -> None:
    """Other processes serve in the place of those that did."""
    old = {child.pid for child in web.children()}
    web.send_signal(signal.SIGHUP)

    def others_serve() -> bool:
        now = {child.pid for child in web.children()}
        return bool(now) and not now & old

    wait_until(others_serve, seconds=60)
