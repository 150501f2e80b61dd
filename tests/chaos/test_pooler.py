"""PgBouncer in transaction mode before pages and handlers: killed and started again under load, or paused."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from urllib.parse import urlencode

import psycopg
import pytest

from tests import databases
from tests.dashboard.api.streams import following, next_event
from tests.databases import ROOT, QueueDatabase
from tests.pgbouncer import VERSION_OF_PREPARED, pgbouncer, version
from tests.tasks.worker_app import pooled
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until
from tests.web import gunicorn

RESTARTS = 10
TASKS = 300  # after each
AWAY_SECONDS, UP_SECONDS = 0.5, 4.0
PAUSE_SECONDS = 1.5
PAGES = ("/admin/", "/admin/tasks/task/", "/admin/tasks/attempt/", "/admin/ops/locks/", "/admin/ops/workers/",
         "/admin/ops/stale/", "/admin/ops/schedule/", "/admin/ops/audit/")  # fmt: skip
PEOPLE = ("first-operator", "second-operator")
PASSWORD = "correct horse"
SETTINGS = """
SELECT name, setting FROM pg_settings WHERE context = 'user' AND source = 'session'
AND name NOT IN ('application_name', 'client_encoding', 'transaction_isolation', 'transaction_read_only')
"""
# Protocol-level prepared statements need a newer proxy than some machines have.
PREPARED = (False, True) if version() >= VERSION_OF_PREPARED else (False,)


@pytest.mark.chaos
def test_a_proxy_that_is_killed_costs_attempts_and_no_task(database, ledger, start_worker):
    """Workers have their own way to the database, so none is lost; the handlers that the proxy took along run again."""
    variables = {"DIRECT_DATABASE_URL": database.url}
    with tempfile.TemporaryDirectory(prefix="pgbouncer-", dir="/tmp") as folder:
        for number in range(RESTARTS + 1):
            with pgbouncer(database.url, folder=folder) as proxied:
                with closing(QueueDatabase(proxied)) as customer:
                    customer.enqueue(handlers.write_in_transaction, 0.01, count=TASKS)
                if not number:
                    workers = [start_worker("--concurrency", 2, DATABASE_URL=proxied, **variables) for _ in range(2)]
                wait_until(lambda number=number: ledger.count() > number * TASKS, seconds=60)
                children = {pid for worker in workers for pid in worker.children()}
        with pgbouncer(database.url, folder=folder):
            assert database.wait_until_finished(seconds=120) == {"COMPLETED": (RESTARTS + 1) * TASKS}
    failed = database.rows("SELECT outcome, exception_class, count(*) FROM tasks_attempt GROUP BY 1, 2")
    print(failed)
    assert [row[:2] for row in failed] == [("failed", "django.db.utils.OperationalError")]
    assert children == {pid for worker in workers for pid in worker.children()}, "a worker process was lost"
    assert [worker.stop() for worker in workers] == [0, 0]


@dataclass
class Reader:
    """Somebody who looks at one page after the other, logged in by the form as a browser is."""

    name: str
    port: int
    answers: Counter[int] = field(default_factory=Counter)
    strangers: int = 0  # pages for somebody else
    well_at: list[float] = field(default_factory=list)  # by `time.monotonic()`: each page that was answered with 200

    def __post_init__(self) -> None:
        self.browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        page = self.browser.open(f"http://127.0.0.1:{self.port}/admin/login/?next=/admin/").read().decode()
        token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', page)[1]
        form = {"csrfmiddlewaretoken": token, "username": self.name, "password": PASSWORD, "next": "/admin/"}
        self.browser.open(f"http://127.0.0.1:{self.port}/admin/login/", urlencode(form).encode())

    def read(self, over: threading.Event) -> None:
        number = 0
        while not over.wait(0.02):
            number += 1
            try:
                answer = self.browser.open(f"http://127.0.0.1:{self.port}{PAGES[number % len(PAGES)]}", timeout=30)
                text = answer.read().decode()
            except urllib.error.HTTPError as error:
                self.answers[error.code] += 1
            except (OSError, http.client.HTTPException):
                self.answers[0] += 1
            else:
                self.answers[200] += 1
                self.strangers += f">{self.name}<" not in text
                self.well_at.append(time.monotonic())


@pytest.mark.chaos
@pytest.mark.parametrize("is_prepared", PREPARED)
def test_pages_and_handlers_of_every_kind_behind_a_proxy_that_is_killed(database, ledger, start_worker, is_prepared):
    """Tasks lose nothing, pages answer again at once, nobody gets another one's session or settings."""
    variables = {"DIRECT_DATABASE_URL": database.url, **({"TEST_PREPARE_THRESHOLD": 0} if is_prepared else {})}
    for name in PEOPLE:
        make_operator(database.url, name)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pgbouncer-", dir="/tmp"))
        proxy = {"folder": folder, "keeps_prepared": is_prepared}
        first = contextlib.ExitStack()
        proxied = first.enter_context(pgbouncer(database.url, **proxy))
        for options in (("--concurrency", 2), ("--threads", 4), ("--coroutines", 8)):
            start_worker(*options, DATABASE_URL=proxied, **variables)
        _, port = stack.enter_context(gunicorn(proxied, **{name: str(value) for name, value in variables.items()}))
        readers, over = [Reader(name, port) for name in PEOPLE], threading.Event()
        threads = [threading.Thread(target=reader.read, args=(over,)) for reader in readers]
        for thread in threads:
            thread.start()
        stack.callback(over.set)
        again = [disturb(database, proxied, first, readers, number, proxy, stack) for number in range(RESTARTS)]
        with closing(QueueDatabase(proxied)) as customer:
            for kind in (handlers.count_queues, pooled.rest):
                customer.enqueue(kind, count=TASKS)
        finished = database.wait_until_finished(seconds=180)
        over.set()
        for thread in threads:
            thread.join()
        changed = {row for _ in range(12) for row in settings_of(proxied)}
    answers = dict(sum((reader.answers for reader in readers), Counter()))
    told = {
        "prepared": is_prepared,
        "tasks": sum(finished.values()),
        "answers": answers,
        "again_after_s": sorted(again),
    }
    print(json.dumps(told))
    assert set(finished) == {"COMPLETED"}
    assert sum(reader.strangers for reader in readers) == 0
    assert set(answers) <= {200, 503}
    assert changed == set(), "settings of one client reached another"


@pytest.mark.chaos
def test_a_pause_a_reload_and_new_connections_of_the_proxy_cost_nothing(database, ledger, start_worker):
    """As for maintenance of the server behind it: everybody waits, nobody fails, and a stream of the API goes on."""
    variables, over = {"DIRECT_DATABASE_URL": database.url}, threading.Event()
    make_operator(database.url, PEOPLE[0])
    secret = manage(database.url, "create_token", "follower", "--user", PEOPLE[0]).strip()
    [followed] = database.enqueue(handlers.quick, run_after_seconds=3600)
    with contextlib.ExitStack() as stack:
        proxied = stack.enter_context(pgbouncer(database.url))
        _, port = stack.enter_context(gunicorn(proxied, **variables))
        stream = stack.enter_context(following(port, secret, followed))
        for options in (("--concurrency", 2), ("--threads", 4), ("--coroutines", 8)):
            start_worker(*options, DATABASE_URL=proxied, **variables)
        assert next_event(stream)[0] == "task"
        reader = Reader(PEOPLE[0], port)
        thread = threading.Thread(target=reader.read, args=(over,))
        thread.start()
        stack.callback(over.set)
        for _ in range(RESTARTS // 2):
            with closing(QueueDatabase(proxied)) as customer:
                for kind in (handlers.write_in_transaction, handlers.count_queues, pooled.rest):
                    customer.enqueue(kind, count=TASKS // 3)
            maintain(proxied)
        database.rows("UPDATE tasks_task SET priority = 7, run_after = now() WHERE id = %s", followed)
        events = [next_event(stream)]
        while events[-1][0] == "task":
            events.append(next_event(stream))
        assert set(database.wait_until_finished(seconds=120)) == {"COMPLETED"}
        over.set()
        thread.join()
    print(json.dumps({"answers": reader.answers, "events": [name for name, _ in events]}))
    assert (events[0][1]["priority"], events[-1][0]) == (7, "end")
    assert set(reader.answers) == {200}
    assert database.rows("SELECT * FROM tasks_attempt") == []


def maintain(proxied: str) -> None:
    """Pause while clients are at work, read the configuration again, renew the sessions with the server, and resume."""
    with psycopg.connect(
        databases.named(proxied, "pgbouncer"), autocommit=True, cursor_factory=psycopg.ClientCursor
    ) as console:
        console.execute("PAUSE")
        time.sleep(PAUSE_SECONDS)
        for command in ("RELOAD", "RECONNECT", "RESUME"):
            console.execute(command)


def disturb(database, proxied, first, readers, number, proxy, stack) -> float:
    """Tasks through the proxy, which dies and comes back: seconds until both readers see a page again."""
    with closing(QueueDatabase(proxied)) as customer:
        for kind in (handlers.count_queues, pooled.rest):
            customer.enqueue(kind, count=TASKS // 2)
    time.sleep(UP_SECONDS / RESTARTS)
    first.close()  # SIGKILL, also of the one that the last turn has started
    time.sleep(AWAY_SECONDS)
    first.enter_context(pgbouncer(database.url, **proxy))
    stack.callback(first.close)
    began = time.monotonic()
    wait_until(lambda: all(reader.well_at and reader.well_at[-1] > began for reader in readers), seconds=60)
    return round(max(min(at for at in reader.well_at if at > began) for reader in readers) - began, 3)


def settings_of(proxied: str) -> list[tuple[str, str]]:
    with psycopg.connect(proxied, autocommit=True) as connection:
        return connection.execute(SETTINGS).fetchall()


def make_operator(url: str, name: str) -> None:
    manage(url, "createsuperuser", "--noinput", "--username", name, "--email", "a@b.example")


def manage(url: str, *words: str) -> str:
    """Run a management command of the project; returns its output."""
    variables = {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings", "DJANGO_SUPERUSER_PASSWORD": PASSWORD}
    argv, environment = [sys.executable, "manage.py", *words], {**os.environ, **variables}
    return subprocess.run(argv, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
