"""A part is made before the tab that refreshes it asks again, and for nobody when the tab is gone."""

import contextlib
import http.client
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.http import HttpRequest
from django.template import loader
from django.test import Client

from dashboard.live import fragment, prefetch, snapshots
from dashboard.live.prefetch import LONGEST_SECONDS, Make, Prefetched, PrefetchThread
from dashboard.live.snapshots import Latest
from dashboard.task_pages import listing
from tasks.panels import Snapshot
from tests import databases
from tests.people import client_of
from tests.tasks import rows
from tests.waiting import wait_until
from tests.web import gunicorn

WORKERS = "/admin/ops/workers/"
SCHEDULE, AUDIT, CHARTS = "/admin/ops/schedule/", "/admin/ops/audit/", "/admin/ops/charts/?span=7d"
LIVE = {
    WORKERS: "workers",
    "/admin/": "overview",
    "/admin/ops/locks/": "locks",
    "/admin/ops/stale/": "stale",
    SCHEDULE: "schedule",
}
LISTS = ("/admin/tasks/task/", "/admin/tasks/task/?status=PROCESSING", "/admin/tasks/task/why/default/")
LIMIT = 1.0
SHARING = "tests.benchmarks.pages.settings"  # where one look serves all, as in production
ASKED_SINCE = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'rowlock:web'
    AND query_start > %s + interval '1 second'
"""


@pytest.fixture
def thread(transactional_db: None, settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrefetchThread]:
    """What each process of the web server runs."""
    settings.SHARED_LOOK_SECONDS = LIMIT
    snapshots.forget()
    prefetch.start()
    thread = prefetch._thread
    assert thread
    yield thread
    monkeypatch.setattr(prefetch, "_thread", None)
    thread.stop()
    thread.join(20)
    assert not thread.is_alive()
    snapshots.forget()


@pytest.fixture
def renderers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that rendered parts."""
    names: list[str] = []

    def render(template: str, *arguments: object) -> str:
        names.append(threading.current_thread().name)
        return loader.render_to_string(template, *arguments)

    monkeypatch.setattr(fragment, "render_to_string", render)
    return names


def of_everything(make: Make = print, every: float = 2.0) -> Prefetched:
    """A part of the look that all share."""
    return Prefetched(snapshots.EVERYTHING, every, make, HttpRequest())


def ask(client: Client, address: str) -> str:
    """The part, without the token that each answer has for itself."""
    text = client.get(address, headers={"HX-Request": "true"}).content.decode()
    return re.sub(r'(csrfmiddlewaretoken" value=)"\w+"', r"\1", text)


class Expected:
    """A tab that asks again, perhaps later than its page says: on a busy machine it may be given up, and comes anew."""

    def __init__(self, thread: PrefetchThread, renderers: list[str], address: str = WORKERS) -> None:
        self.thread, self.renderers, self.address = thread, renderers, address
        self.client = client_of("Operators")

    def is_made_for(self) -> bool:
        """It asks; whether its part was rendered before it was given up."""
        self.renderers.clear()
        ask(self.client, self.address)
        wait_until(lambda: "prefetch" in self.renderers or not self.thread.parts)
        return "prefetch" in self.renderers

    def finds_its_part(self) -> str:
        """The part that it gets without a rendering of its own; empty when it came too late for that."""
        if not self.is_made_for():
            return ""
        wait_until(is_made)
        self.renderers.clear()
        part = ask(self.client, self.address)
        return "" if "MainThread" in self.renderers else part


def noted_until(condition: Callable[[], object], thread: PrefetchThread, key: str, part: Prefetched) -> None:
    """Wait for it while tabs ask for this part: one that is given up is followed by another."""

    def it_is_so() -> object:
        if key not in thread.parts:
            thread.note(key, part, None)
        return condition()

    wait_until(it_is_so)


def test_each_process_of_the_web_server_does_it(transactional_db: None) -> None:
    """After one request of one tab, a session of the web server asks again that nobody has asked for."""
    cookie = f"sessionid={client_of('Operators').cookies['sessionid'].value}"
    url = databases.named(os.environ["DATABASE_URL"], str(connection.settings_dict["NAME"]))

    def it_asks_by_itself() -> bool:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as tab:
            tab.request("GET", WORKERS, headers={"Host": "localhost", "Cookie": cookie, "HX-Request": "true"})
            assert tab.getresponse().status == 200
        [[answered]] = fetched("SELECT clock_timestamp()")
        given_up = time.monotonic() + 5
        while not (asked := fetched(ASKED_SINCE, answered)) and time.monotonic() < given_up:
            time.sleep(0.02)
        return bool(asked)

    with gunicorn(url, SHARING) as (_web, port):
        wait_until(it_asks_by_itself, seconds=60)


def fetched(statement: str, *params: object) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())


def sessions() -> int:
    """Those of this test's database beside its own."""
    [[number]] = fetched(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return int(number)


@pytest.mark.parametrize("address", [*LIVE, *LISTS])
def test_a_tab_that_asks_again_finds_its_part_made_and_fresh(thread, renderers, address) -> None:
    tab = Expected(thread, renderers, address)
    assert "w-that-died" not in ask(tab.client, address)
    rows.processing(rows.dead_worker("w-that-died"))
    after = wait_until(tab.finds_its_part, seconds=60)
    assert ("w-that-died" in after) == (address in ("/admin/", WORKERS, "/admin/ops/stale/", *LISTS))


@pytest.mark.parametrize("address", [WORKERS, "/admin/", LISTS[0], AUDIT])
def test_a_page_that_is_opened_finds_its_part_made_when_it_asks_for_it(thread, renderers, address) -> None:
    client = client_of("Operators")

    def the_first_part_is_made() -> str:
        client.get(address)
        renderers.clear()  # two pages are made of their part
        wait_until(lambda: renderers or not thread.parts)
        part = ask(client, address)
        return "" if "MainThread" in renderers else part

    assert "<html" not in wait_until(the_first_part_is_made, seconds=60)


def is_made() -> bool:
    with snapshots._guard:
        return any(snapshot._made for snapshot in snapshots._snapshots.values())


def test_a_list_that_does_not_refresh_itself_is_not_made_again(thread, monkeypatch) -> None:
    monkeypatch.setattr(listing, "QUICK_SECONDS", 0.0)
    assert b"data-live=" not in client_of("Operators").get("/admin/tasks/task/").content
    assert thread.parts == {}


@pytest.mark.parametrize(("name", "is_left_to_its_tabs"), [("a search", True), (snapshots.EVERYTHING, False)])
def test_the_others_do_not_wait_for_a_slow_search(thread, name, is_left_to_its_tabs) -> None:
    taken: list[Snapshot] = []

    def make(request: HttpRequest, snapshot: Snapshot) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(%s)", [1.2 * LONGEST_SECONDS])
        taken.append(snapshot)

    part = Prefetched(name, 2.0, make, HttpRequest())
    noted_until(lambda: taken, thread, "part", part)
    wait_until(lambda: part.is_slow == is_left_to_its_tabs)
    assert prefetch.will_make("part") != is_left_to_its_tabs
    assert (part.due(time.monotonic(), Latest(None, 0.0, 0.0)) is None) == is_left_to_its_tabs


def test_for_a_tab_that_is_gone_it_is_made_once_and_no_session_stays(thread, renderers) -> None:
    before = sessions()
    wait_until(Expected(thread, renderers).is_made_for)
    wait_until(lambda: thread.parts == {})
    wait_until(lambda: sessions() == before)
    assert renderers.count("prefetch") == 1


def test_what_goes_wrong_is_told_once_and_the_tab_asks_for_itself(thread, renderers, caplog) -> None:
    is_away = threading.Event()

    def make(request: HttpRequest, snapshot: Snapshot) -> None:
        is_away.set()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    for _ in range(3):
        is_away.clear()
        noted_until(is_away.is_set, thread, "broken", of_everything(make, 0.5))
    wait_until(lambda: caplog.text.count("division by zero") >= 1)
    wait_until(Expected(thread, renderers).is_made_for)
    assert caplog.text.count("division by zero") == 1


def test_a_fault_of_the_program_does_not_end_it(thread, renderers, caplog) -> None:
    def make(request: HttpRequest, snapshot: Snapshot) -> None:
        raise ValueError("a fault of ours")

    noted_until(lambda: "a fault of ours" in caplog.text, thread, "broken", of_everything(make, 0.5))
    wait_until(Expected(thread, renderers).is_made_for)


def test_without_sharing_nothing_is_made_before_it_is_asked_for(thread, settings) -> None:
    settings.SHARED_LOOK_SECONDS = 0
    ask(client_of("Operators"), WORKERS)
    assert thread.parts == {}


def test_of_many_parts_the_latest_are_kept(monkeypatch) -> None:
    monkeypatch.setattr(prefetch, "MOST_PARTS", 2)
    idle = PrefetchThread()  # never started
    for key in "abac":
        idle.note(key, of_everything(), None)
    assert list(idle.parts) == ["a", "c"]


@pytest.mark.parametrize(("address", "name"), LIVE.items())
def test_the_time_after_which_tabs_ask_is_that_of_the_page(thread, address, name) -> None:
    ask(client_of("Operators"), address)
    page = (Path(databases.ROOT) / f"templates/dashboard/{name}.html").read_text()
    [part] = thread.parts.values()
    assert f'data-live="{part.every:g}"' in page


def test_charts_are_of_a_look_that_lasts_as_long_as_they_are_good_enough(thread) -> None:
    ask(client_of("Operators"), CHARTS)
    [part] = thread.parts.values()
    assert (part.every, part.seconds) == (10, 300)
    assert part.snapshot is snapshots.latest(part.name, part.seconds).snapshot
    assert 'data-live="10" data-live-apart' in client_of("Viewers", username="boris").get("/admin/").content.decode()


@pytest.mark.parametrize("address", [*LISTS, AUDIT])
def test_the_page_says_the_time_that_its_part_was_told(thread, address) -> None:
    page = client_of("Operators").get(address).content.decode()
    [part] = thread.parts.values()
    assert f'data-live="{part.every:g}"' in page


def test_what_is_about_to_be_made_is_not_made_by_the_tab(thread, renderers, settings) -> None:
    """Its first look at the new moment is the thread's; the tab takes the last one, if that is not old."""
    client = client_of("Operators")
    settings.SHARED_LOOK_SECONDS = 60  # nothing becomes old here, however slow the machine is
    with thread.changed:  # nor is anything made by the thread
        before = ask(client, WORKERS)
        with snapshots._guard:
            snapshots._snapshots[snapshots.EVERYTHING] = Snapshot(before=snapshots._snapshots[snapshots.EVERYTHING])
        assert ask(client, WORKERS) == before
        assert renderers == ["MainThread"]
    settings.SHARED_LOOK_SECONDS = LIMIT
    wait_until(Expected(thread, renderers).is_made_for)


def test_what_is_too_old_does_not_stand_in(thread) -> None:
    client = client_of("Operators")
    ask(client, WORKERS)
    rows.processing(rows.dead_worker("w-that-died"))
    with snapshots._guard:
        former = snapshots._snapshots[snapshots.EVERYTHING]
        former.began -= 2.1 * LIMIT
        snapshots._snapshots[snapshots.EVERYTHING] = Snapshot(before=former)
    assert "w-that-died" in ask(client, WORKERS)
