"""The pages through a transaction-pooling proxy (fault F10): each transaction meets another session of the server."""

import contextlib
import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection

from tests.commands import database_url
from tests.dashboard.addresses import NOBODY, Access, expected, walk
from tests.dashboard.security.test_security_matrix import address
from tests.dashboard.task_pages.test_admin_actions import confirm, state
from tests.people import client_of
from tests.pgbouncer import PORT, pgbouncer
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)


@contextlib.contextmanager
def through_a_proxy() -> Iterator[None]:
    """Django's connection as the settings make it where DIRECT_DATABASE_URL is set."""
    with pgbouncer(database_url()) as proxied:
        folder = parse_qs(urlsplit(proxied).query)["host"][0]
        wanted = {"HOST": folder, "PORT": PORT, "DISABLE_SERVER_SIDE_CURSORS": True}
        kept = {key: connection.settings_dict.get(key) for key in wanted}
        connection.close()
        connection.settings_dict.update(wanted)
        try:
            yield
        finally:
            connection.close()
            connection.settings_dict.update(kept)


def test_f10_every_page_answers_and_a_button_works_through_a_pooling_proxy(settings):
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database_url()}
    settings.ROWLOCK_LAB = False
    failed = rows.failed()
    client = client_of(is_superuser=True)
    client.raise_request_exception = False
    pages = {address(*page) for page in walk() if "superuser" in (expected(page[1]) or Access(NOBODY)).get}
    with through_a_proxy():
        answers = {page: client.get(page).status_code for page in sorted(pages)}
        page = confirm(client, "requeue", failed, reason="through the proxy")
        assert {page: status for page, status in answers.items() if status >= 500} == {}
        assert f"done for #{failed.pk}" in re.sub(r"<[^>]+>", "", page.text)
        assert through_which_sessions() > 1, "one session served everything: nothing was tried"
    assert state(failed) == ("READY", 12)


def through_which_sessions() -> int:
    """How many sessions of the server two transactions of this connection meet."""
    return len({connection.cursor().execute("SELECT pg_backend_pid()").fetchone()[0] for _ in range(4)})
