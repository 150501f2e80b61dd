"""ACCESS EXCLUSIVE on the table of a list: it shows its last known state, how old that is and who holds the lock."""

import re
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db import connection
from django.test import Client
from django.urls import resolve, reverse

from dashboard.layout import pages
from dashboard.live import last_known
from dashboard.locks.limits import limited
from dashboard.task_pages import listing
from dashboard.views import overview
from tests.dashboard.locks.test_locked_tables import locked, started
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
TASKS, HTMX = "/admin/tasks/task/", {"HX-Request": "true"}
# The table without which each list is nothing.
TABLES = {
    "index": "tasks_task", "ops_stale": "tasks_task", "tasks_task_changelist": "tasks_task",
    "orders_order_changelist": "orders_order", "orders_account_changelist": "orders_account",
    "tasks_queue_changelist": "tasks_task", "ops_workers": "tasks_worker", "ops_schedule": "tasks_lock",
    "ops_limits": "tasks_limit", "ops_failures": "tasks_attempt", "ops_lab": "dashboard_labrun",
    "ops_audit": "tasks_intervention", "ops_fleet": "dashboard_installation",
}  # fmt: skip
NEVER_LOCKED_OUT = {"admin:ops_locks", "admin:models"}


@pytest.fixture(autouse=True)
def _short() -> Iterator[None]:
    """The limit of a page's session, shorter."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '400ms'")
    yield
    connection.close()


def told(pid: int) -> str:
    return f"pid {pid} · migration · user "


def test_every_list_of_the_menu_is_tried() -> None:
    assert {f"admin:{name}" for name in TABLES} == {page.url_name for page in pages()} - NEVER_LOCKED_OUT


@pytest.mark.parametrize("name", TABLES)
def test_a_page_that_is_opened_shows_its_last_known_state_and_the_holder(name) -> None:
    client, url = client_of("Lock administrators", "Operators", is_superuser=True), reverse(f"admin:{name}")
    task = rows.processing(rows.dead_worker("w-dead"))
    before = client.get(url).text
    with locked(TABLES[name]) as pid:
        answer = client.get(url)
        command = f"python manage.py signal_backend {pid} --started {started(pid)} --terminate"
    page = answer.text
    assert answer.status_code == 200
    assert 'id="last-known" role="alert" data-age="' in page
    assert "This is the last known state, " in page
    assert f"{told(pid)}" in page
    assert command in page
    assert content(page).partition("</div>")[2].strip() == content(before), "the page itself is as it was"
    assert name != "ops_stale" or f"stale-{task.pk}" in page
    assert [page.count(text) for text in ('class="pages"', "<footer", "<html", "</html>")] == [1, 1, 1, 1]
    assert answer["Age"].isdecimal()
    assert "no-store" in answer["Cache-Control"]


def content(page: str) -> str:
    """Return the page's text of the rows, without tokens and ages."""
    inner = page[page.index('<div id="content"') : page.index("<!-- END Content -->")].partition(">")[2]
    inner = inner.partition('role="alert"')[2] or inner
    return " ".join(re.sub(r'value="[^"]*"|<!-- /?personal -->', "", inner).split())


def test_what_a_tab_refreshed_last_is_known_to_a_new_page() -> None:
    client = client_of("Viewers")
    client.get(TASKS)
    task = rows.failed()
    client.get(TASKS, headers=HTMX)
    with locked("tasks_task") as pid:
        page = client.get(TASKS).text
    assert f'id="task-{task.pk}"' in page
    assert told(pid) in page
    assert page.index('id="last-known"') < page.index(f'hx-get="{TASKS}"') < page.index(f'id="task-{task.pk}"')


def test_an_open_tab_keeps_its_own_state_and_is_told_who() -> None:
    client = client_of("Viewers")
    for url in (TASKS, "/admin/"):
        client.get(url)
        with locked("tasks_task") as pid:
            answer = client.get(url, headers=HTMX)
        assert answer.status_code == 503
        assert told(pid) in answer.text


def test_a_page_that_was_never_shown_has_no_state() -> None:
    client = client_of("Viewers")
    with locked("tasks_task") as pid:
        answer = client.get(TASKS)
        whole = client.get("/admin/")
    assert answer.status_code == 503
    assert told(pid) in answer.text
    assert whole.status_code == 200
    assert "A part of this list is not known at this moment." in whole.text
    assert 'id="last-known"' not in whole.text


@pytest.mark.parametrize("url", [TASKS, "/admin/"])
def test_the_state_is_as_old_as_it_is(url) -> None:
    """A repeated state is not kept as a new one, nor is an overview with a hole."""
    client = client_of("Viewers")
    client.get(url)
    [(key, kept)] = last_known._kept.items()
    last_known._kept[key] = kept._replace(monotonic=kept.monotonic - 90)
    with locked("tasks_task"):
        pages = [client.get(url).text for _ in range(2)]
    assert [re.search(r'data-age="(\d+)"', page)[1][0] for page in pages] == ["9", "9"]
    assert re.search(r"This is the last known state, 9\d s old:", pages[1])
    assert 'id="last-known"' not in client.get(url).text, "the lock is gone"


class TestRights:
    def test_whoever_may_not_see_it_gets_no_state(self) -> None:
        client_of("Viewers").get(TASKS)
        other = client_of(username="otto")
        with locked("tasks_task"):
            assert other.get(TASKS).status_code == 403
            User.objects.get(username="otto").user_permissions.add(Permission.objects.get(codename="view_task"))
            answer = other.get(TASKS)
        assert answer.status_code == 503
        assert 'id="task-rows"' not in answer.text

    def test_a_superuser_s_state_is_for_superusers(self) -> None:
        client_of(is_superuser=True).get(TASKS)
        with locked("tasks_task"):
            assert client_of("Operators", username="otto").get(TASKS).status_code == 503

    def test_without_a_login_there_is_none(self) -> None:
        client_of().get("/admin/")  # without any right, as those who are not logged in
        with locked("tasks_task"):
            assert Client().get("/admin/").status_code == 302

    def test_only_those_who_may_see_pages_are_asked_for(self, rf) -> None:
        """An answer that fails before the login is checked does not know who asks."""
        request = rf.get("/admin/")
        request.resolver_match = resolve("/admin/")
        request.user = AnonymousUser()
        assert not last_known.is_list(request)
        request.user = User.objects.create_user("anna", is_staff=True)
        assert last_known.is_list(request)

    def test_the_same_rights_share_it_and_nothing_of_a_person_is_in_it(self) -> None:
        anna, otto = client_of("Viewers"), client_of("Viewers", username="otto")
        anna.post(reverse("admin:tasks_task_save_view"), {"name": "my secret view", "filter": "status=FAILED"})
        shown = anna.get(TASKS).text
        assert "my secret view" in shown
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', shown)[1]
        with locked("tasks_task"):
            page = otto.get(TASKS).text
        assert 'id="last-known"' in page
        assert "<strong>otto</strong>" in page
        assert [text for text in ("anna", "my secret view", token) if text in page] == []
        tokens = re.findall(r'name="csrfmiddlewaretoken" value="(\w*)"', page)
        assert len(set(tokens)) == 1
        assert otto.cookies["csrftoken"].value

    def test_who_may_not_see_sessions_is_not_told_who(self) -> None:
        client = client_of()
        User.objects.get().user_permissions.add(Permission.objects.get(codename="view_task"))
        client.get(TASKS)
        with locked("tasks_task") as pid:
            page = client.get(TASKS).text
        assert 'id="last-known"' in page
        assert str(pid) not in page
        assert "python manage.py show_locks --tree" in page


def test_a_slow_statement_is_no_lock(monkeypatch) -> None:
    def sleeps() -> None:
        with limited(connection, 50, 50), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(9)")

    client = client_of("Viewers")
    client.get(TASKS)
    monkeypatch.setattr(listing, "known_queues", sleeps)
    answer = client.get(TASKS)
    assert answer.status_code == 503
    assert "took too long" in answer.text


def test_another_address_or_language_is_another_state() -> None:
    client = client_of("Viewers")
    client.get(TASKS)
    with locked("tasks_task"):
        assert client.get(f"{TASKS}?status=FAILED").status_code == 503
        assert client.get(TASKS, headers={"Accept-Language": "ru"}).status_code == 503
        assert client.get(TASKS).status_code == 200


def test_the_oldest_is_dropped(monkeypatch) -> None:
    monkeypatch.setattr(last_known, "MOST", 2)
    client = client_of("Viewers")
    for query in ("", "?status=FAILED", "?status=READY"):
        client.get(f"{TASKS}{query}")
    assert len(last_known._kept) == 2
    with locked("tasks_task"):
        assert client.get(TASKS).status_code == 503


def test_if_even_the_menu_cannot_be_read_the_holder_is_named(monkeypatch) -> None:
    client = client_of("Viewers")
    client.get(TASKS)
    monkeypatch.setattr(overview, "counts_for", lambda _request: User.objects.raw("SELECT 1/0 AS id")[0])
    with locked("tasks_task") as pid:
        answer = client.get(TASKS)
    assert answer.status_code == 503
    assert told(pid) in answer.text
