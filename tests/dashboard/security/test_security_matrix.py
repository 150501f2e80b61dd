"""Every address, every role, every method: closed by default, nothing written by reading, no forged post."""

import re
from urllib.parse import urljoin, urlsplit

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.db.models import Model
from django.http import HttpResponse
from django.test import Client
from django.urls import resolve

from dashboard import secrets
from dashboard.models import AlertChannel, DemoRow, Installation, SavedView
from orders.models import Account, Order
from tasks.models import Attempt, BulkRun, CommandRun, Intervention, RefusedWrite, Worker
from tests.dashboard.addresses import NOBODY, PAGES, ROLES, Access, expected, walk
from tests.html import pressable
from tests.people import person
from tests.tasks import rows

pytestmark = pytest.mark.django_db

# Inserts, updates and deletes of this transaction, rolled back ones included.
WRITES = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::int FROM pg_stat_xact_user_tables"
ROUTES = sorted((route, name) for route, name in walk() if name != "logout")  # it would end the walk
ID, FAILURE = 4711, "0123456789ab"
SLUGS = {
    "ops_limit_switch": "pause", "tasks_queue_switch": "pause", "orders_order_run": "shipped_emails",
    "orders_order_watch": "shipped_emails", "ops_schedule_act": "pause",
}  # fmt: skip
# Rights to see, without which no right to act helps.
BLIND_TO = ("view_task", "view_schedule")
ACTIONS = ("tasks_task_action", "tasks_task_all", "ops_schedule_act", "ops_schedule_switch_on", "ops_schedule_add")
# Addresses of what is not there: a 404 is what those are told who may look.
ABSENT = {"ops_attention", "ops_lab_run", "ops_lab_stop", "orders_order_watch"}


@pytest.fixture(autouse=True)
def a_row_of_everything(settings):
    """Each under the same id, far from what sequences give."""
    settings.SHARED_LOOK_SECONDS = 0
    settings.ROWLOCK_LAB = True
    settings.ROWLOCK = {**settings.ROWLOCK, "BURST": True}
    Group.objects.create(id=ID, name="a group")
    rows.archived(id=ID)
    task = rows.failed(id=ID)
    Worker.objects.create(id=str(ID), hostname="host", pid=41234)
    Attempt.objects.create(
        id=ID, task=task, number=1, worker_id=str(ID), outcome="failed", fingerprint=f"{FAILURE} app/tasks.py:charge"
    )
    RefusedWrite.objects.create(id=ID, task_id=ID, worker_id=str(ID), expected_version=1, intent="fail")
    Intervention.objects.create(id=ID, actor="anna", source="page", action="cancel", target=f"task:{ID}")
    BulkRun.objects.create(id=ID, action="requeue", filter="", upto=1, actor="anna")
    CommandRun.objects.create(id=ID, name="nightly", argv=["x"])
    AlertChannel.objects.create(id=ID, name="ops", sealed_address="gAAAA")
    Order.objects.create(id=ID, customer_email="a@customer.test")
    DemoRow.objects.create(id=ID, kind="order", row_id=1)  # the demo is there, and of its rows none
    Installation.objects.create(id=ID, name="shop", url="http://127.0.0.1:9", token=secrets.seal("t"))
    Account.objects.create(id=ID, owner=User.objects.create_user("owner", id=ID))


def client_for(role: str, **options: bool) -> Client:
    client = Client(raise_request_exception=False, **options)
    if role == "customer":
        client.force_login(User.objects.get_or_create(username=role)[0])
    elif role != "nobody":
        client.force_login(person(*ROLES[role], username=role, is_superuser=role == "superuser"))
    return client


def address(route: str, name: str) -> str:
    """The route with something in the place of each variable part."""
    if "^" in route or "(" in route:
        return {"app_list": "/admin/tasks/"}.get(name, "/admin/nowhere/")
    text = route.replace("<slug:name>", SLUGS.get(name, "requeue")).replace("<str:key>", FAILURE)
    return "/" + re.sub(r"<[^>]+>", str(ID), text)


def is_let_in(answer: HttpResponse, name: str) -> bool:
    """Neither sent to the login nor refused; what a page answers to an empty form is its own affair."""
    target = answer.headers.get("Location") or answer.headers.get("HX-Redirect")
    if target is not None:
        return "/login/" not in target
    return answer.status_code not in (401, 403, 405) and (answer.status_code != 404 or name in ABSENT)


def writes() -> int:
    with connection.cursor() as cursor:
        cursor.execute(WRITES)
        return cursor.fetchone()[0]


def ask(client: Client, method: str, route: str, name: str, **options: object) -> tuple[HttpResponse, int]:
    """The answer, and how many rows it wrote."""
    before = writes()
    answer = getattr(client, method)(address(route, name), **options)
    assert answer.status_code < 500, f"{method} {route}: {answer.content[:300]!r}"
    return answer, writes() - before


def access(name: str) -> Access:
    return expected(name) or Access(NOBODY)


def differences(
    role: str, method: str, routes: list[tuple[str, str]], pages: dict[str, str] | None = None, **options: object
) -> list[str]:
    """Where this role is let in and should not be, or should be and is not; for GET also where rows were written.

    `pages` takes the texts of those that are to be open, by their address.
    """
    client, found = client_for(role), []
    for route, name in routes:
        answer, written = ask(client, method, route, name, **options)
        wanted = role in getattr(access(name), method)
        if pages is not None and wanted:
            pages[address(route, name)] = answer.text
        if is_let_in(answer, name) != wanted:
            found.append(f"{name}: {answer.status_code}, should {'open' if wanted else 'be closed'}")
        if "no-store" not in answer.headers.get("Cache-Control", ""):
            found.append(f"{name}: {answer.status_code}, may be kept by a proxy")
        if written and (method == "get" or not wanted):
            found.append(f"{name}: wrote {written} rows")
    return found


def test_every_address_has_its_line_in_the_table():
    missing = sorted(name for _route, name in ROUTES if expected(name) is None)
    assert missing == [], "say in tests/dashboard/addresses.py who may read these and who may post to them"


def test_the_table_knows_no_address_that_is_gone():
    assert sorted(PAGES.keys() - {"logout"} - {name for _route, name in ROUTES}) == []


@pytest.mark.parametrize("role", ROLES)
def test_reading_opens_what_the_role_may_see_and_writes_nothing(role):
    """And each button that can be pressed leads to where the role may post."""
    pages: dict[str, str] = {}
    assert differences(role, "get", ROUTES, pages) == []
    if role not in ("nobody", "customer"):
        buttons = [(here, urljoin(here, target)) for here, page in pages.items() for target in pressable(page, here)]
        assert [button for button in buttons if role not in access(aim_of(button[1])).post] == []
        assert len(buttons) > 10


def aim_of(url: str) -> str:
    return resolve(urlsplit(url).path).url_name or ""


@pytest.mark.parametrize("role", ["nobody", "staff", "viewer"])
def test_parts_that_refresh_themselves_open_to_the_same_roles(role):
    pages = [(route, name) for route, name in ROUTES if name in PAGES]
    assert differences(role, "get", pages, headers={"HX-Request": "true"}) == []


@pytest.mark.parametrize("role", ROLES)
def test_posting_does_nothing_for_roles_that_may_not(role):
    assert differences(role, "post", ROUTES) == []


def test_a_right_to_act_opens_no_action_on_what_the_person_may_not_see():
    client, user = Client(), person(username="blind")
    user.user_permissions.set(Permission.objects.exclude(codename__in=BLIND_TO))
    client.force_login(user)
    actions = [(route, name) for route, name in ROUTES if name in ACTIONS]
    answers = [ask(client, "post", route, name) for route, name in actions]
    assert [(answer.status_code, written) for answer, written in answers] == [(403, 0)] * len(ACTIONS)


def test_what_belongs_to_one_person_is_out_of_reach_for_others():
    """A saved view is the only such thing: everything else belongs to those who have the right to its table."""
    view = SavedView.objects.create(user_id=ID, name="the owner's", query="?status=FAILED")
    for role in ("viewer", "superuser"):
        client = client_for(role)
        assert client.post("/admin/tasks/task/views/delete/", {"view": view.pk}).status_code == 302
        assert "the owner" not in client.get("/admin/tasks/task/").text
    assert SavedView.objects.get() == view
    owned = {model._meta.label for model in apps.get_app_config("dashboard").get_models() if is_of_a_person(model)}
    assert owned == {"dashboard.SavedView", "dashboard.ApiToken"}, "and tokens, which superusers alone see"


def is_of_a_person(model: type[Model]) -> bool:
    return any(field.related_model is User for field in model._meta.concrete_fields)


@pytest.mark.parametrize("method", ["put", "delete"])
def test_other_methods_write_nothing(method):
    client = client_for("superuser")
    assert [name for route, name in ROUTES if ask(client, method, route, name)[1]] == []


def test_a_post_without_its_token_is_refused_everywhere():
    client = client_for("superuser", enforce_csrf_checks=True)
    answers = {name: ask(client, "post", route, name) for route, name in ROUTES}
    assert {name: found for name, found in answers.items() if (found[0].status_code, found[1]) != (403, 0)} == {}


def test_a_post_from_a_foreign_page_is_refused_everywhere():
    client = client_for("superuser", enforce_csrf_checks=True)
    token = "a" * 32
    client.cookies[settings.CSRF_COOKIE_NAME] = token
    form = {"data": {"csrfmiddlewaretoken": token}}
    assert ask(client, "post", "admin/all/", "models", **form)[0].status_code == 200
    for origin in ("https://evil.example", "null"):
        answers = {name: ask(client, "post", route, name, headers={"Origin": origin}, **form) for route, name in ROUTES}
        assert {name: found for name, found in answers.items() if (found[0].status_code, found[1]) != (403, 0)} == {}


def test_logging_out_is_a_post():
    client = client_for("viewer")
    assert client.get("/admin/logout/").status_code == 405
    assert client.get("/admin/tasks/task/").status_code == 200
    assert client.post("/admin/logout/").status_code in (200, 302)
    assert client.get("/admin/tasks/task/").status_code == 302
