"""ACCESS EXCLUSIVE on our tables: the lock page and its commands answer within 2 s, name the holder and end it."""

import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import connection
from django.utils.html import escape

from dashboard.locks import activity, signals
from dashboard.locks.limits import NAME_MS, Names, Unavailable, limited, locked_tables
from dashboard.locks.signals import NotAudited
from orders.models import Account
from tasks.models import Intervention, LockWaiter, Task, Worker
from tasks.support.audit import Who
from tests.commands import run, run_process
from tests.dashboard.scenes import LOCK_ACCOUNT, SWEEP, Scene, staged
from tests.html import answers
from tests.people import client_of
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
LOCKS, SIGNAL = "/admin/ops/locks/", "/admin/ops/locks/signal/"
TABLES = {model._meta.db_table: model._meta.app_label for model in apps.get_models() if model._meta.managed}
OURS = sorted(table for table, app in TABLES.items() if app in ("tasks", "orders", "dashboard"))
EACH_AND_ALL = [*((table,) for table in OURS), tuple(OURS)]
# The tables that the lock page of the scene below reads. The rest hold it up nowhere.
ASKED = {
    "dashboard_labrun", "orders_account", "orders_order", "tasks_lock", "tasks_lockwaiter", "tasks_task", "tasks_worker"
}  # fmt: skip
PROMISED_SECONDS = 2.0
ANNA = Who("anna", "page")
PRESENCE = "SELECT pg_advisory_lock(rowlock_lock_class(), hashtext('w1'))"


def name_of(tables: tuple[str, ...]) -> str:
    return tables[0] if len(tables) == 1 else "all"


each_and_all = pytest.mark.parametrize("tables", EACH_AND_ALL, ids=name_of)


@contextmanager
def locked(*tables: str) -> Iterator[int]:
    """The pid of a session that holds ACCESS EXCLUSIVE on these tables."""
    with session("migration") as holder:
        holder.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
        yield holder.info.backend_pid


@contextmanager
def every_kind_of_name() -> Iterator[Scene]:
    """Sessions whose names stand in tables: a worker, a lab run, a named lock, and a wait for an advisory lock."""
    Worker.objects.create(id="7f", hostname="h", pid=1, current_task_id=rows.processing("7f").pk)
    LockWaiter.objects.create(name="nightly", owner="w1", hostname="h", pid=1)
    with Scene() as scene:
        for name in ("rowlock:worker:7f", "rowlock:lab:lab_7f"):
            scene.opened(name, autocommit=True).execute("SELECT 1")
        scene.opened("rowlock:lock:nightly", autocommit=True).execute(PRESENCE)
        scene.holding("sweeper", SWEEP)
        scene.waiting("other", SWEEP)
        yield scene


@contextmanager
def within_the_promise() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < PROMISED_SECONDS


def started(pid: int) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT backend_start FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone()[0].isoformat()


def ending(text: str) -> list[str]:
    """The words of the one command in this text that ends a session."""
    [line] = [line for line in text.splitlines() if "signal_backend" in line]
    return shlex.split(line)


def is_gone(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone()[0] == 0


@each_and_all
def test_the_page_draws_the_tree_names_the_holder_and_offers_its_end(tables) -> None:
    client = client_of("Lock administrators")
    client.get(LOCKS)  # compiles the templates
    with every_kind_of_name() as scene, locked(*tables) as pid, within_the_promise():
        answer = client.get(LOCKS)
    assert answer.status_code == 200
    html = answer.content.decode()
    tree = html[html.index('<ul id="lock-tree"') : html.index('id="held-heading"')]
    assert f'id="node-{scene.pid("other")}"' in tree[tree.index(f'id="node-{scene.pid("sweeper")}"') :]
    assert "the sweep for dead workers" in tree
    assert f'name="pid" value="{pid}"' in html
    assert "Database locks (1)" in html
    assert {table for table in TABLES if f"`{table}` is locked by {pid}" in html} == set(tables)
    assert {table for table in TABLES if f"name not available: `{table}` is" in html} == ASKED & set(tables)
    assert f'<a href="#node-{pid}">See the session</a>' in html
    assert "No session holds one of the rows" not in html


@each_and_all
def test_show_locks_names_the_holder_and_prints_the_command_that_ends_it(tables) -> None:
    with every_kind_of_name(), locked(*tables) as pid:
        with within_the_promise():
            data = run("show_locks", "--json").data
        with within_the_promise():
            text = run("show_locks", "--tree").stdout
        began = started(pid)
    assert {"sessions", "locks", "blockers", "rows"} <= data.keys()
    assert pid in {found["pid"] for found in data["sessions"]}
    assert {found["table"]: found["pid"] for found in data["unavailable"]} == dict.fromkeys(tables, pid)
    assert [table for table in tables if f"`{table}` is locked by {pid}" not in text] == []
    assert f"python manage.py signal_backend {pid} --started {began} --terminate" in text


@each_and_all
def test_the_session_that_locks_them_is_ended_and_audited(tables) -> None:
    with locked(*tables) as pid:
        began = started(pid)
        with within_the_promise():
            outcome = run("signal_backend", pid, "--started", began, "--terminate", "--json")
        assert (outcome.status, outcome.data) == (0, {"signalled": True})
        wait_until(lambda: is_gone(pid))
    assert Intervention.objects.get().target == f"backend:{pid}"


def test_the_commands_need_neither_people_nor_their_sessions() -> None:
    with locked(*TABLES) as pid:
        with within_the_promise():
            text = run("show_locks").stdout
        with within_the_promise():
            outcome = run(*ending(text)[2:])
        assert (outcome.status, outcome.stdout) == (0, f"Backend {pid} signalled: terminate.\n")
        wait_until(lambda: is_gone(pid))


def test_the_page_previews_and_ends_the_session_that_locks_everything() -> None:
    client = client_of("Lock administrators")
    with locked(*OURS) as pid:
        form = {"pid": str(pid), "started": started(pid), "action": "terminate", "reason": "a migration"}
        with within_the_promise():
            preview = client.post(SIGNAL, form)
        with within_the_promise():
            answer = client.post(SIGNAL, {**form, "confirmed": "1"})
        wait_until(lambda: is_gone(pid))
    assert preview.status_code == 200
    assert f"`tasks_task` is locked by {pid}" in preview.content.decode()
    assert answer.status_code == 302
    assert f"Backend {pid} was signalled." in answers(client.get(LOCKS).text)
    assert Intervention.objects.get().reason == "a migration"


class TestAnAuditThatStaysLocked:
    """The blocker must end all the same, and the missing line must be said and kept."""

    def test_the_command_says_who_locks_it_and_the_log_has_the_line(self, caplog) -> None:
        with locked("tasks_intervention") as locker, session("psql") as victim:
            pid = victim.info.backend_pid
            argv = ("signal_backend", pid, "--started", started(pid), "--terminate", "--reason", "stuck", "--json")
            with within_the_promise():
                outcome = run(*argv)
            wait_until(lambda: is_gone(pid))
        assert (outcome.status, outcome.data) == (0, {"signalled": True, "audited": False})
        assert f"the audit has no line of it: `tasks_intervention` is locked by {locker}" in outcome.stderr
        [record] = caplog.records
        kept = rf"source=command action=terminate target=backend:{pid} .* reason=stuck"
        assert (record.levelname, bool(re.search(kept, record.getMessage()))) == ("ERROR", True)
        assert not Intervention.objects.exists()

    def test_the_page_warns(self) -> None:
        client = client_of("Lock administrators")
        with locked("tasks_intervention") as pid, session("psql") as victim:
            form = {"pid": str(victim.info.backend_pid), "started": started(victim.info.backend_pid)}
            answer = client.post(SIGNAL, {**form, "action": "cancel", "confirmed": "1"}, follow=True)
        assert escape(f"no line of it: `tasks_intervention` is locked by {pid}") in answer.content.decode()

    def test_a_lock_that_stops_writers_alone_is_named_too(self) -> None:
        with session("index") as holder, session("psql") as victim:
            holder.execute("LOCK TABLE tasks_intervention IN SHARE MODE")
            pid, began = victim.info.backend_pid, activity.read().by_pid[victim.info.backend_pid].backend_start
            with pytest.raises(NotAudited, match=f"is locked by {holder.info.backend_pid}"):
                signals.signal(pid, began, "cancel", ANNA)


class TestNames:
    def test_a_table_that_is_locked_in_between_costs_one_wait(self) -> None:
        names = Names(connection)
        assert names.ask(Task.objects.count, "tasks_task") == 0
        with locked("tasks_task") as pid:
            before = time.monotonic()
            assert [names.ask(Task.objects.count, "tasks_task") for _ in range(20)] == [None] * 20
            assert time.monotonic() - before < 20 * NAME_MS / 1000
            assert names.unavailable == {Unavailable("tasks_task", pid)}

    def test_a_question_that_takes_too_long_is_given_up(self) -> None:
        names = Names(connection)
        assert names.ask(lambda: sleep(5), "tasks_task") is None
        [missing] = names.unavailable
        assert str(missing) == "name not available: `tasks_task` did not answer within 200 ms"

    def test_the_limits_of_the_transaction_around_it_come_back(self) -> None:
        with limited(connection, 7000, 3000):
            Names(connection).ask(Task.objects.count, "tasks_task")
            with connection.cursor() as cursor:
                cursor.execute("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")
                assert cursor.fetchone() == ("3s", "7s")

    def test_who_waits_for_the_table_stops_it_too(self) -> None:
        """A migration behind a long report: the report is the root, and the migration locks out the page."""
        with Scene() as scene:
            scene.holding("report", "SELECT count(*) FROM tasks_task")
            scene.waiting("migration", "LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
            with within_the_promise():
                html = client_of("Viewers").get(LOCKS).content.decode()
        tree = html[html.index('<ul id="lock-tree"') : html.index('id="held-heading"')]
        assert tree.index(f'id="node-{scene.pid("report")}"') < tree.index(f'id="node-{scene.pid("migration")}"')
        assert f"name not available: `tasks_task` is locked by {scene.pid('migration')}" in html

    def test_a_locked_index_locks_its_table(self) -> None:
        with session("reindex") as holder:
            holder.execute("REINDEX INDEX tasks_task_pkey")
            assert locked_tables(connection)["tasks_task"] == holder.info.backend_pid
            assert str(Unavailable("tasks_task", 0)).endswith("by a prepared transaction")


def sleep(seconds: float) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])
    return "slept"


class TestTheRootOfAChain:
    def test_it_ends_from_any_session_of_the_chain(self) -> None:
        with staged() as (scene, _):
            root, last = scene.pid("psql"), scene.pid("report")
            dry = run("signal_backend", "--root", last, "--terminate", "--dry-run")
            assert dry.stdout.startswith(f"Backend {root} would be signalled: terminate. It is the root of")
            outcome = run("signal_backend", "--root", last, "--terminate", "--reason", "stuck", "--json")
            assert (outcome.status, outcome.data) == (0, {"signalled": True, "pid": root})
            wait_until(lambda: is_gone(root))
        row = Intervention.objects.get()
        assert (row.target, row.reason) == (f"backend:{root}", "stuck")

    def test_the_root_itself_will_do(self) -> None:
        account = Account.objects.create(owner=User.objects.create_user("owner"))
        with Scene() as scene:
            scene.holding("psql", LOCK_ACCOUNT, [account.pk])
            scene.waiting("one", LOCK_ACCOUNT, [account.pk])
            pid = scene.pid("psql")
            assert run("signal_backend", "--root", pid, "--cancel", "--json").data == {"signalled": True, "pid": pid}

    def test_who_neither_waits_nor_blocks_has_none(self) -> None:
        with session("psql") as alone:
            alone.execute("SELECT 1")
            outcome = run("signal_backend", "--root", alone.info.backend_pid, "--terminate", "--json")
        assert (outcome.status, outcome.data) == (1, {"signalled": False})
        assert "waits for no other and blocks none" in outcome.stderr

    @pytest.mark.parametrize("argv", [["7"], ["7", "--root", "7"], ["--root", "7", "--started", "now"], []])
    def test_one_way_to_name_the_backend_and_not_both(self, argv) -> None:
        outcome = run("signal_backend", *argv, "--terminate")
        assert outcome.status == 2
        assert "--started" in outcome.stderr


def test_show_locks_prints_what_ends_the_root_and_it_runs_as_it_stands() -> None:
    account = Account.objects.create(owner=User.objects.create_user("owner"))
    with Scene() as scene:
        scene.holding("psql", LOCK_ACCOUNT, [account.pk])
        scene.waiting("one", LOCK_ACCOUNT, [account.pk])
        text = run("show_locks", "--blocked").stdout
        python, manage, *command = ending(text)
        assert (python, manage, command[1]) == ("python", "manage.py", str(scene.pid("psql")))
        assert run(*command).status == 0
        wait_until(lambda: is_gone(scene.pid("psql")))


def test_the_preparation_of_up_does_not_wait_for_a_locked_table_and_names_the_holder() -> None:
    with locked("django_migrations") as pid:
        outcome = run_process("prepare_site", "--json")
        began = started(pid)
    assert outcome.status == 1
    assert "nothing waits longer than 2 s" in outcome.stderr
    assert f"pid {pid} · migration · user " in outcome.stderr
    assert f"python manage.py signal_backend {pid} --started {began} --terminate" in outcome.stderr
