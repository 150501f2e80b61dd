"""Signals to sessions: what they would do is foreseen, whom they may reach, and that two clicks are one."""

import re
from datetime import datetime

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection

from dashboard.locks import attribution, signals
from dashboard.locks.signals import AlreadySignalled, NotSignalled
from dashboard.locks.tree import RowRef
from orders.models import Account, Order
from tasks.diagnosis import lock_holders
from tasks.models import Intervention, Worker
from tasks.panels import Snapshot
from tasks.support.audit import Who
from tests.commands import run
from tests.dashboard.roles import acting_as, opened_as, role
from tests.dashboard.scenes import LOCK_ACCOUNT, LOCK_ORDER, Scene, staged
from tests.html import answers
from tests.people import client_of
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
LOCKS, SIGNAL = "/admin/ops/locks/", "/admin/ops/locks/signal/"
ANNA = Who("anna", "page")


def started(pid: int) -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT backend_start FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone()[0]


def is_gone(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone()[0] == 0


class TestForesight:
    def test_who_goes_on_at_once_and_who_only_behind_others(self) -> None:
        with staged() as (scene, account):
            pid = scene.pid("psql")
            expected = signals.foresee(pid, started(pid))
            assert [session.pid for session in expected.at_once] == [scene.pid("rowlock:worker:7f")]
            behind = {"rowlock:cmd:transfer", "rowlock:cmd:recover_tasks", "report", "rowlock:web"}
            assert {session.pid for session in expected.later} == {scene.pid(name) for name in behind}
            assert expected.work.rows == (RowRef(Account, account.pk),)

    def test_what_rolls_back(self) -> None:
        order = Order.objects.create(customer_email="a@example.test")
        with Scene() as scene:
            scene.holding("reader", "SELECT 1")
            scene.holding("writer", LOCK_ORDER, [order.pk])
            scene.opened("idle", autocommit=True).execute("SELECT 1")
            seen = attribution.lock_page(Snapshot()).seen
            told = {name: signals.undone_work(seen.by_pid[pid], "terminate") for name, pid in scene.pids.items()}
            assert "only read" in told["reader"]
            assert "everything it wrote or locked" in told["writer"]
            assert "no transaction" in told["idle"]
            cancelled = signals.undone_work(seen.by_pid[scene.pid("writer")], "cancel")
            assert "stays open, with its locks" in cancelled

    @pytest.mark.parametrize(("attempt", "fate"), [(1, "may happen twice"), (5, "ends as FAILED")])
    def test_what_becomes_of_its_task(self, attempt: int, fate: str) -> None:
        task = rows.processing("7f", attempt=attempt)
        Worker.objects.create(id="7f", hostname="h", pid=1, current_task_id=task.pk)
        with Scene() as scene:
            scene.opened("rowlock:worker:7f").execute("SELECT 1")
            pid = scene.pid("rowlock:worker:7f")
            form = {"pid": str(pid), "started": started(pid).isoformat(), "action": "terminate"}
            html = client_of("Lock administrators").post(SIGNAL, form).content.decode()
        assert f"/admin/tasks/task/{task.pk}/" in html
        assert fate in html

    def test_a_session_that_cannot_be_signalled_is_previewed_without_a_button(self) -> None:
        with Scene() as scene:
            scene.opened("rowlock:web").execute("SELECT 1")
            pid = scene.pid("rowlock:web")
            form = {"pid": str(pid), "started": started(pid).isoformat(), "action": "terminate"}
            answer = client_of("Lock administrators").post(SIGNAL, form)
        assert answer.status_code == 409
        assert b"own; ending it would end this page" in answer.content
        assert b'name="confirmed"' not in answer.content


class TestOneThing:
    def test_a_second_click_signals_nobody_and_is_told_so(self) -> None:
        """The cancelled session lives on, so only the guard keeps its next query from being cancelled too."""
        with Scene() as scene:
            pid = scene.opened("psql").info.backend_pid
            began = started(pid)
            assert signals.signal(pid, began, "cancel", ANNA)
            with pytest.raises(AlreadySignalled, match="a moment ago by anna"):
                signals.signal(pid, began, "cancel", ANNA)
            assert Intervention.objects.count() == 1

    def test_the_page_answers_the_second_click_without_an_error(self) -> None:
        with Scene() as scene:
            pid = scene.opened("psql").info.backend_pid
            form = {"pid": str(pid), "started": started(pid).isoformat(), "action": "cancel", "confirmed": "1"}
            client = client_of("Lock administrators")
            first, second = (client.post(SIGNAL, form, follow=True).text for _ in range(2))
        assert f"Backend {pid} was signalled." in answers(first)
        assert "was not signalled again" in second
        assert 'class="error"' not in second
        assert Intervention.objects.count() == 1

    def test_terminate_after_cancel_is_another_thing(self) -> None:
        with Scene() as scene:
            pid = scene.opened("psql").info.backend_pid
            began = started(pid)
            assert signals.signal(pid, began, "cancel", ANNA)
            assert signals.signal(pid, began, "terminate", ANNA)
            wait_until(lambda: is_gone(pid))
            with pytest.raises(NotSignalled, match="has ended"):
                signals.signal(pid, began, "terminate", ANNA)
        assert Intervention.objects.count() == 2

    def test_one_that_is_being_signalled_by_somebody_else_is_busy(self) -> None:
        with Scene() as scene:
            pid = scene.opened("psql").info.backend_pid
            form = {"pid": str(pid), "started": started(pid).isoformat(), "action": "cancel", "confirmed": "1"}
            other = scene.opened("other")
            other.execute("SELECT pg_advisory_lock(hashtext('rowlock:signal'), %s::int)", [pid])
            client = client_of("Lock administrators")
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '100ms'")
                answer = client.post(SIGNAL, form, follow=True)
                cursor.execute("RESET lock_timeout")
        assert b"Another person is signalling" in answer.content
        assert not Intervention.objects.exists()


class TestRights:
    def test_the_sessions_of_a_superuser_are_beyond_a_plain_role(self) -> None:
        with role("pg_signal_backend", "pg_read_all_stats") as plain, Scene() as scene:
            conn = scene.opened("psql")
            pid, began = conn.info.backend_pid, started(conn.info.backend_pid)
            with acting_as(plain), pytest.raises(NotSignalled, match="superuser"):
                signals.signal(pid, began, "terminate", ANNA)
            assert conn.execute("SELECT 1").fetchone() == (1,)

    def test_another_roles_session_takes_the_grant_which_is_named(self) -> None:
        with role() as plain, role("pg_read_all_stats") as mine, Scene() as scene:
            pid = opened_as(scene, plain, "psql").info.backend_pid
            with acting_as(mine), pytest.raises(NotSignalled, match=f"GRANT pg_signal_backend TO {mine}"):
                signals.signal(pid, started(pid), "terminate", ANNA)
            scene.close()

    def test_with_the_grant_it_is_signalled(self) -> None:
        with role() as plain, role("pg_read_all_stats", "pg_signal_backend") as mine, Scene() as scene:
            pid = opened_as(scene, plain, "psql").info.backend_pid
            with acting_as(mine):
                assert signals.signal(pid, started(pid), "terminate", ANNA)
            wait_until(lambda: is_gone(pid))
            scene.close()

    def test_a_session_whose_start_is_hidden_is_not_signalled(self) -> None:
        with role("pg_signal_backend") as mine, Scene() as scene:
            pid = scene.opened("psql").info.backend_pid
            began = started(pid)
            with acting_as(mine), pytest.raises(NotSignalled, match="GRANT pg_read_all_stats"):
                signals.signal(pid, began, "terminate", ANNA)

    def test_the_servers_own_processes_are_not_signalled(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pid, backend_start FROM pg_stat_activity WHERE backend_type = 'autovacuum launcher'")
            pid, began = cursor.fetchone()
        with pytest.raises(NotSignalled, match="autovacuum launcher"):
            signals.signal(pid, began, "terminate", ANNA)

    def test_a_session_of_another_database_is_not_signalled(self) -> None:
        params = {**connection.get_connection_params(), "dbname": "postgres"}
        known = {key: params[key] for key in ("dbname", "host", "port", "user", "password") if key in params}
        with psycopg.connect(**known) as other:
            pid = other.info.backend_pid
            with pytest.raises(NotSignalled, match="another database"):
                signals.signal(pid, started(pid), "terminate", ANNA)


class TestWhatIsHidden:
    """Without pg_read_all_stats a session hides its state, its type and that it waits."""

    def test_the_tree_is_drawn_all_the_same_and_the_grant_is_named(self) -> None:
        account = Account.objects.create(owner=User.objects.create_user("owner"))
        with role() as mine, Scene() as scene:
            scene.holding("psql", LOCK_ACCOUNT, [account.pk])
            scene.waiting("rowlock:worker:7f", LOCK_ACCOUNT, [account.pk])
            with acting_as(mine):
                html = client_of("Lock administrators").get(LOCKS).content.decode()
                text = run("show_locks", "--tree").stdout
        assert f'id="node-{scene.pid("psql")}"' in html[: html.index('id="held-heading"')]
        assert "blocks 1" in html
        assert f"GRANT pg_read_all_stats TO {mine}" in html
        assert f"GRANT pg_signal_backend TO {mine}" in html
        hidden = rf"\n[2-9] of [2-9] sessions hide .* from role {mine}: GRANT pg_read_all_stats TO {mine}\n"
        assert re.search(hidden, text)
        assert f"may end only its own sessions: GRANT pg_signal_backend TO {mine}" in text
        assert text.splitlines()[1].strip("└├│ ").startswith(f"{scene.pid('rowlock:worker:7f')}  worker 7f")

    def test_a_role_with_the_grants_is_told_nothing(self) -> None:
        with role("pg_read_all_stats", "pg_signal_backend") as mine, acting_as(mine):
            assert "GRANT" not in client_of("Lock administrators").get(LOCKS).content.decode().partition("<pre")[0]
            assert "GRANT" not in run("show_locks", "--tree").stdout

    def test_the_line_of_a_holder_says_which_grant_would_show_more(self) -> None:
        with role() as mine, session("psql") as other:
            other.execute("LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
            pid = other.info.backend_pid
            with acting_as(mine):
                [hidden] = lock_holders.find(connection)
            [seen] = lock_holders.find(connection)
        assert f"pid {pid} · psql · user " in hidden.sentence
        assert hidden.sentence.endswith(f"are hidden: GRANT pg_read_all_stats TO {mine}")
        assert ("insufficient" in hidden.sentence, hidden.command, "GRANT" in seen.sentence) == (False, "", False)
