"""Looks that hang leave a thread to whoever acts: an action is carried out while no page is answered."""

import contextlib
import http.client
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.utils import translation

from dashboard.live import seats
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
    monkeypatch.setattr(seats, "_seats", None)  # as they are again afterwards
    monkeypatch.setattr(seats, "_starts_until", 0.0)
    seats.limit(seats.FREE_FOR_ACTIONS + 1)
    assert [Client().get(f"{LIST}999/").status_code for _ in range(3)] == [302, 302, 302]


def refresh(client: Client) -> tuple[int, str]:
    """The status of a tab's refresh, and after how many seconds it may come again."""
    answer = client.get(LIST, headers={"HX-Request": "true", "Accept-Language": "ru"})
    assert 'role="alert"' in answer.text
    return answer.status_code, answer.headers["Retry-After"]


@pytest.mark.usefixtures("no_seat")
def test_a_refresh_is_told_that_the_process_starts_only_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "_starts_until", math.inf)  # nobody has looked yet
    assert refresh(Client()) == (202, "1")
    assert seats._starts_until <= time.monotonic() + seats.STARTING_SECONDS
    monkeypatch.setattr(seats, "_starts_until", time.monotonic())
    assert refresh(Client()) == (503, "2")


@pytest.mark.usefixtures("no_seat")
def test_the_answer_without_a_seat_is_in_the_language_of_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread keeps the language of its last reader."""
    for starts_until in (0.0, math.inf):
        monkeypatch.setattr(seats, "_starts_until", starts_until)
        with translation.override("ru"):
            answer = Client().get(LIST, headers={"HX-Request": "true", "Accept-Language": "en"})
        assert "The dashboard is" in answer.text


class Tabs:
    """What a web process answers to people who look at it at the same moment."""

    def __init__(self, port: int, cookie: str) -> None:
        self.port, self.cookie = port, cookie
        self.answers: list[tuple[int, str]] = []

    def ask(self, method: str, path: str, form: dict[str, str] | None = None, **headers: str) -> tuple[int, str]:
        """The status and the text of one answer."""
        headers |= {"Host": "localhost", "Cookie": self.cookie, "Content-Type": "application/x-www-form-urlencoded"}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as asked:
            asked.request(method, path, urlencode(form or {}), headers)
            answer = asked.getresponse()
            return answer.status, answer.read().decode()

    def look(self, address: str, **headers: str) -> int:
        self.answers.append(self.ask("GET", address, **headers))
        return self.answers[-1][0]

    def refresh(self, address: str) -> None:
        """As the script of the pages: ask again when told that the process is starting."""
        while self.look(address, **{"HX-Request": "true"}) == 202:
            time.sleep(0.5 + random.random())

    def count(self, status: int) -> int:
        return sum(answered == status for answered, _ in self.answers)


@pytest.fixture
def tabs() -> Iterator[Tabs]:
    """Of an operator, at a web process that has just started; it has no limit on statements and locks."""
    client = client_of("Operators")
    cookie = f"sessionid={client.cookies['sessionid'].value}; csrftoken={TOKEN}"
    url = databases.named(os.environ["DATABASE_URL"], str(connection.settings_dict["NAME"]))
    with gunicorn(url) as (_web, port):
        yield Tabs(port, cookie)


def waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute(WAITING)
        return cursor.fetchone()[0]


def started(target: Callable[[str], object], addresses: list[str]) -> list[threading.Thread]:
    threads = [threading.Thread(target=target, args=(address,)) for address in addresses]
    for thread in threads:
        thread.start()
    return threads


def pause(tabs: Tabs) -> None:
    form = {"queue": "mail", "csrfmiddlewaretoken": TOKEN}
    assert tabs.ask("POST", "/admin/tasks/queue/do/pause/", form)[0] == 302
    assert Queue.objects.get().paused


def test_f21_looks_that_hang_do_not_keep_an_action_from_being_done(tabs: Tabs) -> None:
    """In production limits on statements and locks end such looks within seconds."""
    with session(options=PATIENT) as migration:
        migration.execute("LOCK TABLE tasks_task")
        looks = started(tabs.look, [LIST] * 30)
        wait_until(lambda: (waiting(), len(tabs.answers)) == (12, 18), seconds=60)
        pause(tabs)
        migration.rollback()
        for look in looks:
            look.join(60)
    assert (tabs.count(200), tabs.count(503)) == (12, 18)


def test_f21_fifty_tabs_at_a_process_that_starts_are_served_late(tabs: Tabs) -> None:
    """While the first looks take as long as they like, all others are told so, and an action is done."""
    with session(options=PATIENT) as slow:
        slow.execute("LOCK TABLE tasks_task")
        refreshes = started(tabs.refresh, [LIST] * 50)
        wait_until(lambda: waiting() == 12 and tabs.count(202) >= 38, seconds=60)
        pause(tabs)
        slow.rollback()
        for refresh in refreshes:
            refresh.join(60)
    assert (tabs.count(200), tabs.count(202)) == (50, len(tabs.answers) - 50)
    assert all("The dashboard is starting" in text for status, text in tabs.answers if status == 202)


def test_lists_of_rows_do_not_wait_for_each_other(tabs: Tabs) -> None:
    """Each counts its rows; Python 3.11's cached_property let one thread of the process count at a time."""
    addresses = ["/admin/tasks/attempt/", "/admin/tasks/attempt/?p=1", "/admin/tasks/attempt/?q=7"]
    with session(options=PATIENT) as migration:
        migration.execute("LOCK TABLE tasks_attempt")
        looks = started(tabs.look, addresses)
        wait_until(lambda: waiting() == len(addresses), seconds=60)
        migration.rollback()
        for look in looks:
            look.join(60)
    assert tabs.count(200) == len(addresses)
