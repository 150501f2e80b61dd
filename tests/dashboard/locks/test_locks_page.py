"""The lock page's rules without a browser: rights, stale sessions, forms that no page of ours has made."""

import re
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.views import locks
from tests.dashboard.scenes import Scene, queue_for_one_row
from tests.html import flat
from tests.people import client_of
from tests.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)
LOCKS, SIGNAL = "/admin/ops/locks/", "/admin/ops/locks/signal/"


def form_for(pid: int, **changes: str) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT backend_start FROM pg_stat_activity WHERE pid = %s", [pid])
        started = cursor.fetchone()[0]
    return {"pid": str(pid), "started": started.isoformat(), "action": "terminate", "reason": "why", **changes}


def is_alive(conn: psycopg.Connection) -> bool:
    return conn.execute("SELECT 1").fetchone() == (1,)


def test_htmx_gets_the_panel_and_a_browser_the_page() -> None:
    client = client_of("Viewers")
    assert b"<html" in client.get(LOCKS).content
    panel = client.get(LOCKS, headers={"HX-Request": "true"}).content
    assert b'id="lock-tree"' in panel
    assert b"<html" not in panel


def test_an_expired_session_sends_htmx_to_the_login() -> None:
    answer = Client().get(LOCKS, headers={"HX-Request": "true"})
    assert answer.status_code == 204
    assert answer.headers["HX-Redirect"].startswith("/admin/login/?next=/admin/ops/locks/")


@pytest.mark.parametrize("group", ["Viewers", "Operators", "Account managers"])
def test_only_lock_administrators_signal(group: str) -> None:
    with session() as victim:
        assert is_alive(victim)
        answer = client_of(group).post(SIGNAL, form_for(victim.info.backend_pid, confirmed="1"))
        assert answer.status_code == 403
        assert b"Lock administrators" in answer.content
        assert is_alive(victim)


def test_the_first_post_only_previews() -> None:
    with session() as victim:
        assert is_alive(victim)
        answer = client_of("Lock administrators").post(SIGNAL, form_for(victim.info.backend_pid))
        assert answer.status_code == 200
        assert b"signal_backend" in answer.content
        assert is_alive(victim)


def test_the_preview_offers_the_number_of_blocked_sessions_as_the_reason() -> None:
    """So two clicks dissolve a chain. The reason of a session that blocks nobody comes from the person."""
    with queue_for_one_row(waiters=2, bystanders=0) as scene:
        client = client_of("Lock administrators")
        pages = [client.post(SIGNAL, form_for(scene.pid(name), reason="")).text for name in ("psql", "waiter 1")]
    assert ['value="blocks 2 sessions"' in page for page in pages] == [True, False]
    assert "--reason &#x27;blocks 2 sessions&#x27;" in pages[0]


def test_terminate_needs_a_reason() -> None:
    with session() as victim:
        assert is_alive(victim)
        form = form_for(victim.info.backend_pid, confirmed="1", reason=" ")
        assert b"needs a reason" in client_of("Lock administrators").post(SIGNAL, form).content
        assert is_alive(victim)


def test_another_backend_under_the_same_pid_is_not_signalled() -> None:
    with session() as victim:
        assert is_alive(victim)
        earlier = (timezone.now() - timedelta(days=1)).isoformat()
        client = client_of("Lock administrators")
        form = form_for(victim.info.backend_pid, started=earlier, confirmed="1")
        assert b"another backend by now" in client.post(SIGNAL, form, follow=True).content
        assert is_alive(victim)


def test_a_preview_of_a_backend_that_has_ended_says_so() -> None:
    with session() as victim:
        assert is_alive(victim)
        form = form_for(victim.info.backend_pid)
    assert client_of("Lock administrators").post(SIGNAL, form).status_code == 409


@pytest.mark.parametrize("wrong", [{"pid": "1; --"}, {"started": "yesterday"}, {"action": "kill"}, {"pid": ""}])
def test_a_form_that_no_page_made_is_refused(wrong: dict[str, str]) -> None:
    with session() as victim:
        assert is_alive(victim)
        form = {**form_for(victim.info.backend_pid), "confirmed": "1", **wrong}
        assert client_of("Lock administrators").post(SIGNAL, form).status_code == 400


def test_an_open_transaction_that_blocks_nobody_can_be_ended_too() -> None:
    """The oldest transaction keeps vacuum from its work, and stands in no tree."""
    with session("psql") as open_one, session("idle", autocommit=True) as idle:
        assert is_alive(open_one)
        assert is_alive(idle)
        offered = {
            group: client_of(group).get(LOCKS).content.decode().count('data-action="terminate-backend"')
            for group in ("Lock administrators", "Viewers")
        }
    assert offered == {"Lock administrators": 1, "Viewers": 0}


def test_the_list_of_sessions_is_capped_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "MOST_SESSIONS", 3)
    with Scene() as scene:
        for number in range(4):
            scene.holding(f"open {number}", "SELECT 1")
            scene.opened(f"idle {number}")
        html = client_of("Viewers").get(LOCKS).content.decode()
    sessions, _, idle = html[html.index('id="lock-sessions"') :].partition('id="idle-others"')
    assert [text.count('<li id="node-') for text in (sessions, idle)] == [3, 3]
    assert f'id="node-{scene.pid("open 3")}"' not in html, "the oldest transactions come first"
    assert "4 idle sessions of other programs" in idle
    assert (sessions + idle).count("1 more session.") == 2


def test_idle_sessions_fold_into_one_line() -> None:
    with session("rowlock:web", autocommit=True) as ours, session("report", autocommit=True) as other:
        assert is_alive(ours)
        assert is_alive(other)
        html = client_of("Viewers").get(LOCKS).content.decode()
        pids = ours.info.backend_pid, other.info.backend_pid
    _, _, rest = html.partition('<li id="idle-rowlock">')
    ours_part, _, others_part = rest.partition('<li id="idle-others">')
    assert f'id="node-{pids[0]}"' in ours_part
    assert f'id="node-{pids[1]}"' in others_part
    assert "<details open" not in rest


def test_more_sessions_and_waits_take_no_more_statements() -> None:
    client = client_of("Lock administrators")
    counts = []
    for waiters in (2, 12):
        with queue_for_one_row(waiters=waiters, bystanders=2), CaptureQueriesContext(connection) as statements:
            client.get(LOCKS)
        counts.append(len(statements))
    assert counts[0] == counts[1]


def test_the_button_of_a_viewer_is_disabled_and_says_why() -> None:
    with queue_for_one_row(waiters=1, bystanders=0):
        page = flat(client_of("Viewers").get(LOCKS).text)
    [button] = re.findall(r"<button[^>]*terminate-backend[^>]*>", page)
    assert 'disabled aria-describedby="right-signal"' in button
    assert '<p class="missing-right" id="right-signal">' in page


def test_a_role_that_may_end_nobody_is_told_who_may() -> None:
    answer = client_of("Operators").get(LOCKS)
    assert b"dashboard.signal_backend" in answer.content
    assert b"Lock administrators" in answer.content
