"""The menu stays: on stock pages, and on pages that say what went wrong."""

import contextlib
import re

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import Resolver404

from dashboard.site import page_not_found
from tests.outages import database_at
from tests.people import client_of
from tests.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)
MENU = '<nav class="pages"'


def client(*groups: str) -> Client:
    found = client_of(*groups)
    found.raise_request_exception = False
    return found


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/admin/all/", 200),
        ("/admin/tasks/", 200),
        ("/admin/password_change/", 200),
        ("/admin/orders/order/add/", 403),
        ("/admin/tasks/task/4711/", 404),
        ("/admin/nowhere/", 404),
        ("/nowhere/", 404),
        ("/admin/tasks/task/?queue=%00", 400),
        ("/admin/ops/workers/?worker=%00", 400),
    ],
)
def test_every_page_of_a_viewer_has_the_menu(address, status):
    page = client("Viewers").get(address)
    assert page.status_code == status
    assert page.text.count(MENU) == 1
    assert "Log out" in page.text


def test_a_page_that_is_not_there_shows_no_menu_to_strangers():
    page = Client().get("/nowhere/")
    assert (page.status_code, page.text.count(MENU)) == (404, 0)
    assert "There is no page at this address." in page.text


def test_an_error_before_the_login_is_known_is_answered(rf):
    assert page_not_found(rf.get("/nowhere/"), Resolver404()).status_code == 404


def test_the_open_page_is_marked_in_the_menu():
    page = client("Viewers").get("/admin/all/").text
    assert page.split('aria-current="page"')[1].partition("</a>")[0].split() == [">", "All", "models"]


def test_the_pages_stand_in_the_order_of_the_operators_work():
    menu = client("Viewers").get("/admin/all/").text.split(MENU)[1].partition("</nav>")[0]
    links = re.findall(r"<a href[^>]*>\s*([^<(]+?)\s*[(<]", menu)
    wanted = ["Overview", "Stuck", "Tasks", "Failures", "Database locks", "Orders", "Accounts", "Queues", "Workers"]
    wanted += ["Schedules", "Lab", "Audit", "All models"]
    assert [name for name in links if name in wanted] == [name for name in wanted if name in links]
    assert set(wanted) - set(links) <= {"Failures"}


def broken(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


def test_an_error_of_ours_keeps_the_menu(monkeypatch):
    monkeypatch.setattr("dashboard.views.overview.overview", broken)
    page = client("Viewers").get("/admin/")
    assert page.status_code == 500
    assert "An error in Rowlock itself" in page.text
    assert page.text.count(MENU) == 1


def test_an_error_without_a_database_is_answered_without_the_menu(monkeypatch, tmp_path):
    with contextlib.ExitStack() as stack:

        def broken_twice(request: HttpRequest) -> HttpResponse:
            stack.enter_context(database_at(str(tmp_path)))
            raise ZeroDivisionError

        monkeypatch.setattr("dashboard.views.overview.overview", broken_twice)
        page = client("Viewers").get("/admin/")
    assert page.status_code == 500
    assert "An error in Rowlock itself" in page.text
    assert MENU not in page.text


@pytest.mark.parametrize(("address", "status"), [("/admin/orders/order/add/", 403), ("/nowhere/", 404)])
def test_a_locked_table_of_tasks_takes_only_the_numbers_out_of_the_menu(address, status):
    viewer = client("Viewers")
    with session() as other:
        other.execute("LOCK TABLE tasks_task")
        page = viewer.get(address)
    assert (page.status_code, page.text.count(MENU)) == (status, 1)


@pytest.mark.parametrize("address", ["/admin/orders/order/add/", "/nowhere/"])
def test_without_a_database_the_reason_is_said(address, tmp_path):
    viewer = client("Viewers")
    with database_at(str(tmp_path)):
        page = viewer.get(address)
    assert page.status_code == 503
    assert "The database does not answer." in page.text
