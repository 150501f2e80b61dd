"""The demo's page and ribbon: who may do what, what is refused, what goes and what stays."""

import contextlib
from datetime import timedelta

import psycopg
import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.urls import reverse

from dashboard import demo
from dashboard.demo import control
from dashboard.demo.director import list_ids, list_names, load_once
from dashboard.live import snapshots
from dashboard.models import DemoRow
from orders import accounts
from orders.models import Account, Entry, Order
from tasks.models import Attempt, ExpectedCommand, Intervention, Queue, RefusedWrite, Task
from tasks.support import audit
from tasks.support.audit import Change, Who
from tests.commands import run
from tests.people import client_of
from tests.sessions import OPTIONS, session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
PAGE, ASK, REMOVE = "/admin/ops/demo/", "/admin/ops/demo/ask/", "/admin/ops/demo/remove/"
RIBBON = '<aside class="demo"'
ANNA = Who("anna", "page")


@pytest.fixture
def _on(monkeypatch):
    monkeypatch.setenv("ROWLOCK_DEMO", "1")
    load_once()


@contextlib.contextmanager
def director():
    """A session that is the director, as far as anybody can see, and hears what it is asked."""
    known = {key: value for key, value in connection.get_connection_params().items() if key in OPTIONS}
    with psycopg.connect(**known, autocommit=True, application_name="rowlock:demo:director") as conn:
        wait_until(lambda: conn.execute(control.TAKE).fetchone()[0])  # a former one may just be ending
        conn.execute(f"LISTEN {conn.execute(control.CHANNEL).fetchone()[0]}")
        yield conn


def heard(conn):
    return [notice.payload for notice in conn.notifies(timeout=1, stop_after=1)]


def made(task):
    """A task that the demo has made."""
    list_ids(DemoRow.Kind.TASK, [task.pk])
    return task


class TestTheRibbon:
    @pytest.mark.usefixtures("_on")
    @pytest.mark.parametrize("name", ["index", "ops_locks", "tasks_task_changelist", "ops_schedule", "models"])
    def test_it_stands_on_every_page(self, name):
        assert RIBBON in client_of("Viewers").get(reverse(f"admin:{name}")).content.decode()

    @pytest.mark.usefixtures("_on")
    def test_it_goes_with_the_demo(self):
        control.remove(ANNA)
        assert RIBBON not in client_of("Viewers").get("/admin/all/").content.decode()

    def test_a_site_without_the_demo_has_none_and_asks_nothing(self, monkeypatch, django_assert_max_num_queries):
        load_once()
        monkeypatch.delenv("ROWLOCK_DEMO", raising=False)
        with django_assert_max_num_queries(100) as captured:
            assert RIBBON not in client_of("Operators").get("/admin/all/").content.decode()
        assert not any("rowlock:demo" in query["sql"] for query in captured.captured_queries)

    @pytest.mark.usefixtures("_on")
    def test_before_the_login_there_is_none(self, client):
        assert RIBBON not in client.get("/admin/login/").content.decode()

    @pytest.mark.usefixtures("_on")
    def test_only_who_may_direct_it_has_its_buttons(self):
        with director():
            assert 'data-action="demo-stop"' in client_of("Operators").get(PAGE).content.decode()
            text = client_of("Viewers", username="vera").get(PAGE).content.decode()
        assert 'data-action="demo' not in text
        assert "dashboard.direct_demo" in text

    @pytest.mark.usefixtures("_on")
    def test_it_costs_one_query_a_second_for_all(self, settings, django_assert_max_num_queries):
        settings.SHARED_LOOK_SECONDS = 60
        snapshots.forget()
        client = client_of("Viewers")
        with django_assert_max_num_queries(100) as captured:
            assert RIBBON in client.get("/admin/ops/audit/").text
            assert RIBBON in client.get("/admin/ops/audit/").text
        snapshots.forget()
        assert len([query for query in captured.captured_queries if "rowlock:demo" in query["sql"]]) == 1

    @pytest.mark.usefixtures("_on")
    @pytest.mark.parametrize("name", ["index", "ops_locks", "tasks_task_changelist", "ops_schedule", "models"])
    def test_no_page_fails_because_its_table_is_locked(self, name):
        client = client_of("Viewers")
        with session("migration") as other:
            other.execute("LOCK TABLE dashboard_demorow IN ACCESS EXCLUSIVE MODE")
            answer = client.get(reverse(f"admin:{name}"))
            pid = other.info.backend_pid
        assert answer.status_code == 200
        ribbon = answer.text.partition(RIBBON)[2].partition("</aside>")[0]
        assert f"name not available: `dashboard_demorow` is locked by {pid}" in ribbon
        assert 'data-action="demo' not in ribbon


class TestThePage:
    @pytest.mark.parametrize("address", [PAGE, ASK, REMOVE])
    def test_it_is_there_only_while_the_demo_is(self, address, django_assert_max_num_queries):
        client = client_of("Operators")
        Queue.objects.create(name=demo.REPORTS, paused=True)  # a name alone makes no demo
        with django_assert_max_num_queries(100) as captured:
            answers = [client.post(address, {"do": "stop", "reason": "x"})] if address != PAGE else []
            answers += [client.get(address)] if address != ASK else []
        assert {answer.status_code for answer in answers} == {404}
        assert not any("orders_order" in query["sql"] for query in captured.captured_queries)
        load_once()
        assert client.get(PAGE).status_code == client.get(REMOVE).status_code == 200

    @pytest.mark.usefixtures("_on")
    def test_it_shows_how_each_scene_stands(self):
        text = " ".join(client_of("Viewers").get(PAGE).content.decode().split())
        assert '<tr id="scene-orders">' in text
        assert '<td class="number" data-label="Now">12</td>' in text


class TestAsking:
    @pytest.mark.usefixtures("_on")
    def test_the_director_hears_who_wants_what(self):
        with director() as conn:
            answer = client_of("Operators").post(ASK, {"do": "kill", "director": control.director().mark})
            assert heard(conn) == ['{"do": "kill", "actor": "anna", "source": "page"}']
        assert answer.status_code == 302

    @pytest.mark.usefixtures("_on")
    def test_another_director_than_the_one_seen_is_left_alone(self):
        with director():
            seen = control.director().mark
        with director() as conn:
            client_of("Operators").post(ASK, {"do": "chain", "director": seen})
            assert heard(conn) == []
        assert not Intervention.objects.exists()

    @pytest.mark.usefixtures("_on")
    def test_nothing_else_can_be_asked_for(self):
        with director() as conn:
            mark = control.director().mark
            assert client_of("Operators").post(ASK, {"do": "kill 1", "director": mark}).status_code == 400
            assert heard(conn) == []

    @pytest.mark.parametrize("address", [ASK, REMOVE])
    def test_a_viewer_may_not(self, address):
        assert client_of("Viewers").post(address, {"do": "stop"}).status_code == 403

    def test_looking_does_not_ask(self):
        assert client_of("Operators").get(ASK).status_code == 405


class TestTheMeasure:
    def killed(self, task, worker_id="w1"):
        action = f"kill-worker worker={worker_id} task={task.id}"
        audit.record(connection, ANNA, action, [Change(audit.queue(demo.PARCELS))])

    @pytest.fixture(autouse=True)
    def _loaded(self):
        list_names(DemoRow.Kind.QUEUE, [demo.REPORTS])

    def test_it_is_empty_until_the_task_runs_again(self):
        task = rows.processing("w1", queue_name=demo.PARCELS)
        self.killed(task)
        [kill] = control.kills()
        assert (kill.worker_id, kill.task_id, kill.seconds) == ("w1", task.id, None)

    def test_it_is_the_time_from_the_kill_to_the_next_claim(self):
        task = rows.processing("w1", queue_name=demo.PARCELS)
        self.killed(task)
        at = control.kills()[0].at
        Attempt.objects.create(task=task, number=1, worker_id="w1", outcome="abandoned", finished_at=at)
        Task.objects.filter(pk=task.pk).update(claimed_by="w2", attempt=2, started_at=at + timedelta(seconds=0.75))
        [kill] = control.kills()
        assert (kill.convicted_seconds, kill.seconds, kill.taken_by) == (0, 0.75, "w2")
        assert "0.75 s" in client_of("Viewers").get(PAGE).content.decode()


class TestRemoving:
    def test_the_preview_removes_nothing_and_counts(self):
        load_once()
        text = client_of("Operators").get(REMOVE).content.decode()
        assert f"<dd>{Task.objects.count()}</dd>" in text
        assert Order.objects.count() == 13

    def test_only_what_the_demo_made_goes(self):
        load_once()
        task = made(rows.completed(queue_name="moved away"))
        RefusedWrite.objects.create(task_id=task.pk, worker_id="w", expected_version=1, intent="complete")
        kept = [rows.ready(queue_name="demo-x"), rows.failed(queue_name=demo.BILLING), rows.ready()]
        order = Order.objects.create(customer_email=f"ada{demo.DOMAIN}")
        Queue.objects.create(name="demo-x", paused=True)
        Queue.objects.create(name=demo.BILLING, paused=True)  # with a task of somebody else in it
        ExpectedCommand.objects.create(name="nightly-report", every=timedelta(hours=1))

        client_of("Operators").post(REMOVE, {"reason": "seen it"})

        assert set(Task.objects.values_list("pk", flat=True)) == {task.pk for task in kept}
        assert list(Order.objects.all()) == [order]
        assert {queue.name for queue in Queue.objects.all()} == {"demo-x", demo.BILLING}
        assert [command.name for command in ExpectedCommand.objects.all()] == ["nightly-report"]
        assert not RefusedWrite.objects.exists()
        assert not DemoRow.objects.exists()
        assert set(Intervention.objects.values_list("reason", flat=True)) == {"seen it"}

    def test_the_audit_says_which_rows_went(self):
        load_once()
        tasks = sorted(Task.objects.values_list("pk", flat=True))
        orders = sorted(Order.objects.values_list("pk", flat=True))
        accounts = sorted(Account.objects.values_list("pk", flat=True))
        client_of("Operators").post(REMOVE, {"reason": "seen it"})
        told = list(Intervention.objects.order_by("pk").values_list("action", "target"))
        assert told == [
            (f"demo-remove count={len(tasks)} ids={tasks[0]}-{tasks[-1]}", "table:tasks_task"),
            (f"demo-remove count=13 ids={orders[0]}-{orders[-1]}", "table:orders_order"),
            (f"demo-remove count=3 ids={accounts[0]}-{accounts[-1]}", "table:orders_account"),
            ("demo-remove", f"queue:{demo.PAYOUTS}"),
            ("demo-remove", f"command:{demo.NIGHTLY}"),
        ]

    def test_its_accounts_go_with_their_entries_and_owners(self):
        owner = User.objects.create_user("real")
        kept = Account.objects.create(owner=owner)
        load_once()
        poor, rich = Account.objects.filter(owner__email__endswith=demo.DOMAIN).order_by("balance")[:2]
        accounts.transfer(rich.pk, kept.pk, 10)
        Account.objects.create(owner=poor.owner)
        control.remove(ANNA)
        assert {account.owner_id for account in Account.objects.all()} == {owner.pk, poor.owner_id}
        assert set(User.objects.values_list("username", flat=True)) == {"real", poor.owner.username}
        assert [entry.account_id for entry in Entry.objects.all()] == [kept.pk]
        assert accounts.mismatches() == []

    def test_an_account_that_somebody_holds_stays_with_its_owner(self):
        load_once()
        account = Account.objects.first()
        with session() as holder:
            holder.execute("SELECT 1 FROM orders_account WHERE id = %s FOR UPDATE", [account.pk])
            assert control.remove(ANNA)["accounts"] == 2
        assert (Account.objects.get(), control.is_anything_left()) == (account, True)
        assert control.remove(ANNA)["accounts"] == 1
        assert not User.objects.exists()

    def test_it_needs_a_reason(self):
        load_once()
        for reason in ("", "  "):
            answer = client_of("Operators").post(REMOVE, {"reason": reason})
            assert (answer.status_code, "needs a reason" in answer.text) == (400, True)
        assert Order.objects.count() == 13

    def test_it_has_a_right_of_its_own(self):
        load_once()
        group = Group.objects.get(name="Operators")
        right = group.permissions.get(codename="direct_demo")
        group.permissions.remove(right)
        try:
            assert client_of("Operators").post(REMOVE, {"reason": "x"}).status_code == 403
        finally:
            group.permissions.add(right)
        assert Order.objects.count() == 13

    def test_a_second_time_does_nothing_and_leaves_no_line(self):
        load_once()
        control.remove(ANNA)
        told = Intervention.objects.count()
        assert control.remove(ANNA) == {"tasks": 0, "orders": 0, "accounts": 0, "queues": 0, "commands": 0}
        assert Intervention.objects.count() == told

    def test_what_a_dead_worker_left_goes_too(self):
        made(rows.processing("w-gone", queue_name=demo.PAYOUTS))
        assert control.remove(ANNA)["tasks"] == 1

    def test_what_a_living_worker_is_at_stays_until_it_is_done(self):
        with rows.living_worker() as worker_id:
            task = made(rows.processing(worker_id, queue_name=demo.REPORTS))
            assert control.remove(ANNA)["tasks"] == 0
        assert Task.objects.get() == task

    def test_a_row_that_somebody_holds_stays_and_that_is_said(self):
        load_once()
        order = Order.objects.first()
        with session() as holder:
            holder.execute("SELECT 1 FROM orders_order WHERE id = %s FOR UPDATE", [order.pk])
            answer = client_of("Operators").post(REMOVE, {"reason": "seen it"}, follow=True)
        assert list(Order.objects.all()) == [order]
        assert "remove again" in answer.content.decode()
        assert control.state().is_loaded, "the ribbon still offers to remove it"

    def test_a_director_that_does_not_end_keeps_everything(self, monkeypatch):
        load_once()
        monkeypatch.setattr(control, "STOP_SECONDS", 0.1)
        with director():
            client_of("Operators").post(REMOVE, {"reason": "seen it"})
        assert Order.objects.count() == 13


class TestTheCommand:
    def test_without_a_director_it_says_how_to_start_one(self):
        done = run("demo", "--kill-worker")
        assert done.status == 1
        assert "manage.py direct_demo" in done.stderr

    def test_what_is_left_because_somebody_holds_it_is_told(self):
        load_once()
        with rows.living_worker() as alive:
            made(rows.processing(alive, queue_name=demo.REPORTS))
            held = run("demo", "--remove", "--json")
        assert (held.status, held.data["removed"]["queues"]) == (1, 0)
        assert "remove again" in held.stderr
        Task.objects.update(status="READY", claimed_by=None)
        assert run("demo", "--remove").status == 0
        assert not control.state().is_loaded

    def test_a_dry_run_removes_nothing(self):
        load_once()
        done = run("demo", "--remove", "--dry-run", "--json")
        assert done.data["removed"]["orders"] == 13
        assert Order.objects.count() == 13

    def test_without_an_option_it_says_how_the_demo_stands(self):
        load_once()
        with director():
            done = run("demo", "--json")
        assert (done.data["running"], done.data["orders"]) == (True, 13)
