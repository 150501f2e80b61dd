"""What becomes of DATABASE_URL and EMAIL_URL: refused before anything else is tried, or taken with what pages need."""

import os
import subprocess
import sys

import environ
import pytest
from django.core.checks import run_checks
from django.db import connection, connections

from dashboard import apps, environment, middleware
from tests.databases import ROOT

SERVER = ["/venv/bin/gunicorn", "dashboard.wsgi"]
WORKER = ["manage.py", "run_worker"]


@pytest.mark.parametrize(
    "url",
    ["nonsense", "mysql://a:hidden@b/c", "postgres://", "postgres://u:hidden@h/", "postgres://u:hi#dden@h:x/n", "://"],
)
def test_an_address_of_no_postgresql_is_refused_in_one_line_without_the_password(url):
    argv = [sys.executable, "manage.py", "queue_status"]
    told = subprocess.run(argv, cwd=ROOT, env={**os.environ, "DATABASE_URL": url}, capture_output=True, text=True)
    assert told.returncode == 1
    assert told.stdout == ""
    [line] = told.stderr.splitlines()
    assert line.startswith("DATABASE_URL is not the address of a PostgreSQL database: write postgres://")
    assert "hid" not in line


@pytest.mark.parametrize(
    ("argv", "direct_url", "options"),
    [
        (SERVER, "", environment.PAGE_SESSION),
        (WORKER, "", ""),
        (["manage.py", "prune_tasks"], "", ""),
        (SERVER, "postgres:///direct", ""),
    ],
    ids=["pages", "worker", "command", "pages behind a pooling proxy"],
)
def test_sessions_of_pages_alone_have_limits(argv, direct_url, options, monkeypatch):
    monkeypatch.setenv("DIRECT_DATABASE_URL", direct_url)
    assert environment.session_limits(environ.Env(), argv) == options


@pytest.mark.parametrize(
    ("argv", "options"),
    [(SERVER, f"{environment.PAGE_SESSION} -csearch_path=rowlock"), (WORKER, "-csearch_path=rowlock")],
)
def test_options_in_the_address_do_not_take_the_limits_away(monkeypatch, tmp_path, argv, options):
    monkeypatch.setenv("DATABASE_URL", "postgres://anna@db.example.com/shop?options=-csearch_path%3Drowlock")
    assert environment.database_settings(environ.Env(), tmp_path, argv)["OPTIONS"]["options"] == options


def test_the_probe_keeps_the_options_of_the_address(monkeypatch):
    own = connections["default"]
    monkeypatch.setitem(own.settings_dict["OPTIONS"], "options", "-csearch_path=rowlock")
    try:
        probe = middleware.probing_connection()
        assert probe.settings_dict["OPTIONS"]["options"] == f"-csearch_path=rowlock {middleware.PROBE_SESSION}"
    finally:
        connections["default"] = own  # the probe stands in its place


@pytest.mark.django_db
def test_behind_a_pooling_proxy_a_role_without_limits_is_a_warning(monkeypatch):
    assert run_checks(databases=["default"], tags=["database"]) == []
    monkeypatch.setenv("DIRECT_DATABASE_URL", "postgres:///direct")
    [warning] = apps.check_page_limits(databases=["default"])
    assert warning.id == "rowlock.W005"
    assert "no idle_in_transaction_session_timeout, lock_timeout, statement_timeout" in warning.msg
    with connection.cursor() as cursor:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute(f"SET LOCAL {name} = '5s'")
    assert apps.check_page_limits(databases=["default"]) == apps.check_page_limits() == []


@pytest.mark.parametrize("url", ["nonsense", "gopher://user:hunter2@host/", "smtp://user:hunter2@host:port"])
def test_an_address_for_mails_that_is_none_ends_in_one_line(monkeypatch, tmp_path, url):
    monkeypatch.setenv("EMAIL_URL", url)
    with pytest.raises(SystemExit, match=r"^EMAIL_URL is not an address") as end:
        environment.mail_settings(environ.Env(), tmp_path)
    assert "hunter2" not in str(end.value)
