"""What a browser is told with each answer: what it may load, keep, guess and tell others."""

from urllib.parse import urljoin, urlsplit

import pytest
from django.test import Client

from dashboard.demo import REPORTS
from dashboard.models import DemoRow
from tests.people import PASSWORD, client_of, person
from tests.tasks import rows

pytestmark = pytest.mark.django_db
OPEN = ("/admin/login/", "/admin/nowhere/", "/nowhere/", "/metrics")
PAGES = (
    "/admin/",
    "/admin/tasks/task/",
    "/admin/tasks/task/4711/",
    "/admin/ops/locks/",
    "/admin/ops/audit/",
    "/admin/nowhere/",
)
POLICY = {"default-src 'self'", "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "form-action 'self'"}


@pytest.mark.parametrize("address", [*OPEN, *PAGES])
def test_every_answer_says_what_a_browser_may_do_with_it(address):
    rows.ready(id=4711)
    client = Client() if address in OPEN else client_of("Viewers")
    headers = client.get(address).headers
    assert set(headers["Content-Security-Policy"].split("; ")) >= POLICY
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "charset=utf-8" in headers["Content-Type"]
    assert "no-store" in headers["Cache-Control"]
    assert not [name for name in headers if name.startswith("Access-Control")]


@pytest.mark.parametrize("name", ["locks", "locks/history", "stale", "workers", "lab", "schedule", "audit", "demo"])
def test_who_asks_for_the_headers_alone_gets_them(name):
    """`curl -I`, probes and link checkers send HEAD."""
    DemoRow.objects.create(kind="queue", name=REPORTS)  # else the demo has no page
    answer = client_of("Viewers").head(f"/admin/ops/{name}/")
    assert (answer.status_code, answer.content) == (200, b"")
    assert "Content-Security-Policy" in answer.headers


@pytest.mark.parametrize("address", ["/healthz", "/readyz", "/nowhere/", "/", "/favicon.ico", "/api/v1/openapi.json"])
def test_what_everybody_may_read_is_kept_by_no_proxy(address):
    """A 404 may be kept unless it says otherwise, and has the menu of those who are logged in."""
    for client in (Client(), client_of("Viewers")):
        for headers in ({}, {"HX-Request": "true"}):
            assert "no-store" in client.get(address, headers=headers).headers["Cache-Control"]


def test_an_error_of_the_server_tells_nothing_of_its_inside(settings, monkeypatch):
    settings.DEBUG = False
    rows.ready(id=4711, args=["of the task"])
    monkeypatch.setattr("dashboard.views.locks.page", None)
    client = client_of("Lock administrators")
    client.raise_request_exception = False
    answer = client.get("/admin/ops/locks/")
    assert answer.status_code == 500
    inside = ("Traceback", "TypeError", "NoneType", "dashboard.views", "dashboard/locks.html")
    assert [word for word in inside if word in answer.text] == []
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("evil", ["https://evil.example/", "//evil.example/", "/\\evil.example/"])
def test_no_redirect_leads_to_another_host(evil):
    login = {"username": person("Operators").username, "password": PASSWORD, "next": evil}
    client = client_of("Operators")
    for answer in (
        Client().post("/admin/login/", login),
        Client().post("/admin/login/", login, query_params={"next": evil}),
        client.get("/admin/login/", {"next": evil}),
        client.post("/admin/language/", {"language": "en", "next": evil}, headers={"Referer": evil.strip()}),
        client.post("/admin/tasks/queue/do/pause/", {"queue": "mail", "next": evil}),
        client.get(f"/admin/tasks/task{evil}"),
    ):
        target = urlsplit(urljoin("https://ops.example/admin/", answer.headers.get("Location", "").replace("\\", "/")))
        assert (target.scheme, target.netloc) == ("https", "ops.example"), answer.headers


@pytest.mark.parametrize("address", ["/admin/", "/api/v1/docs/", "/nowhere/"])
def test_no_page_is_answered_or_linked_under_the_name_of_another_host(address):
    client = client_of("Viewers")
    assert client.get(address, headers={"Host": "evil.example"}).status_code == 400
    forwarded = {
        "X-Forwarded-Host": "evil.example",
        "Forwarded": "host=evil.example",
        "X-Original-URL": "//evil.example",
    }
    assert "evil.example" not in client.get(address, headers=forwarded).text
