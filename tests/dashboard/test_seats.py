"""Looks that hang leave a thread to whoever acts: an action is carried out while no page is answered."""

import contextlib
import http.client
import os
import threading
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client

from dashboard import seats
from tasks.models import Queue
from tests import databases
from tests.people import client_of
from tests.sessions import session
from tests.waiting import wait_until
from tests.web import gunicorn

pytestmark = pytest.mark.django_db(transaction=True)
LIST = "/admin/tasks/task/"
TOKEN = "a" * 32
PATIENT = "-c idle_in_transaction_session_timeout=5min"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def no_seat(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    taken = threading.Semaphore(1)
    taken.acquire()
    monkeypatch.setattr(seats, "_seats", taken)
    yield
    assert not taken.acquire(blocking=False)


@pytest.mark.usefixtures("no_seat")
def test_a_look_without_a_seat_is_sent_away_without_asking_the_database(django_assert_num_queries) -> None:
    with django_assert_num_queries(0):
        answer = Client().get(LIST)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert 'role="alert"' in answer.text
    assert f'href="{LIST}"' in answer.text


@pytest.mark.usefixtures("no_seat")
def test_actions_probes_and_scrapes_need_no_seat() -> None:
    client = client_of("Operators")
    assert client.post("/admin/tasks/queue/do/pause/", {"queue": "mail"}).status_code == 302
    assert Queue.objects.get().paused
    assert (client.get("/healthz").status_code, client.get("/metrics").status_code) == (200, 200)


def test_a_seat_is_free_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "_seats", None)  # as it is again afterwards
    seats.limit(seats.FREE_FOR_ACTIONS + 1)
    assert [Client().get(f"{LIST}999/").status_code for _ in range(3)] == [302, 302, 302]


def test_f21_looks_that_hang_do_not_keep_an_action_from_being_done() -> None:
    """With no limit on statements and locks: in production they end such looks within seconds."""
    client = client_of("Operators")
    cookie = f"sessionid={client.cookies['sessionid'].value}; csrftoken={TOKEN}"
    url = databases.named(os.environ["DATABASE_URL"], str(connection.settings_dict["NAME"]))
    statuses: list[int] = []

    def ask(port: int, method: str, path: str, form: dict[str, str] | None = None) -> int:
        headers = {"Host": "localhost", "Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as asked:
            asked.request(method, path, urlencode(form or {}), headers)
            answer = asked.getresponse()
            answer.read()
            return answer.status

    def waiting() -> int:
        with connection.cursor() as cursor:
            cursor.execute(WAITING)
            return cursor.fetchone()[0]

    with gunicorn(url) as (_web, port), session(options=PATIENT) as migration:
        migration.execute("LOCK TABLE tasks_task")
        looks = [threading.Thread(target=lambda: statuses.append(ask(port, "GET", LIST))) for _ in range(30)]
        for look in looks:
            look.start()
        wait_until(lambda: (waiting(), len(statuses)) == (12, 18), seconds=60)
        form = {"queue": "mail", "csrfmiddlewaretoken": TOKEN}
        assert ask(port, "POST", "/admin/tasks/queue/do/pause/", form) == 302
        assert Queue.objects.get().paused
        migration.rollback()
        for look in looks:
            look.join(60)
    assert (statuses.count(200), statuses.count(503)) == (12, 18)
