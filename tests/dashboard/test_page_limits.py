"""Whatever a page asks of the database ends by itself: every statement of every address has both limits (fault F21).

What a page loads has a limit too.
"""

import gzip
from pathlib import Path

import psycopg
import pytest
from django.contrib.staticfiles import finders
from django.db import connection

from tests.dashboard.security.test_security_matrix import ROUTES, a_row_of_everything, ask, client_for  # noqa: F401  a fixture
from tests.dashboard.test_health import page_session  # noqa: F401  a fixture

LIMITS = """
SELECT setting::int FROM pg_settings WHERE name IN ('lock_timeout', 'statement_timeout') ORDER BY name
"""
MOST = [2_000, 5_000]  # ms, of a wait for a lock and of a statement
MOST_BYTES = 60_000  # of all style sheets and scripts, each compressed


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("page_session")
@pytest.mark.parametrize("method", ["get", "post"])
def test_f21_every_statement_of_every_address_has_both_limits(monkeypatch, method):
    """On the one session that pages have: none opens another."""
    free, asked, others = [], [], []
    client = client_for("superuser")
    connection.ensure_connection()

    def watch(execute, sql, params, many, context):
        limits = [setting for (setting,) in connection.connection.cursor().execute(LIMITS)]
        asked.append(sql)
        if not all(0 < limit <= most for limit, most in zip(limits, MOST, strict=True)):
            free.append((where, limits, sql))
        return execute(sql, params, many, context)

    def connect(*args, **kwargs):
        others.append((where, kwargs))
        return plain(*args, **kwargs)

    plain = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", connect)
    with connection.execute_wrapper(watch):
        for where, name in ROUTES:
            ask(client, method, where, name)
    assert len(asked) > len(ROUTES)
    assert free == []
    assert others == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("page_session")
def test_no_statement_of_a_page_is_compiled():
    with connection.cursor() as cursor:
        cursor.execute("SHOW jit")
        assert cursor.fetchone() == ("off",)


@pytest.mark.django_db
def test_style_sheets_and_scripts_are_small():
    folder = Path(finders.find("dashboard"))
    files = [*folder.rglob("*.css"), *folder.rglob("*.js"), Path(finders.find("django_htmx/htmx-2.min.js"))]
    assert len(files) > 20
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= MOST_BYTES
