"""The demo's page and ribbon: who may do what, what is refused, what goes and what stays."""

import contextlib

import psycopg
import pytest
from django.db import connection
from django.urls import reverse

from dashboard import demo
from dashboard.demo import control, data, removal
from orders.models import Order
from tasks import audit
from tasks.audit import Change, Who
from tasks.models import Attempt, ExpectedCommand, Intervention, Queue, RefusedWrite, Task
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
    data.load_once()


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


class TestTheRibbon:
    @pytest.mark.usefixtures("_on")
    @pytest.mark.parametrize("name", ["index", "ops_locks", "tasks_task_changelist", "ops_schedule", "models"])
    def test_it_stands_on_every_page(self, name):
        assert RIBBON in client_of("Viewers").get(reverse(f"admin:{name}")).content.decode()

    @pytest.mark.usefixtures("_on")
    def test_it_goes_with_the_demo(self):
        removal.remove(ANNA)
        assert RIBBON not in client_of("Viewers").get(PAGE).content.decode()

    def test_a_site_without_the_demo_has_none_and_asks_nothing(self, monkeypatch, django_assert_max_num_queries):
        data.load_once()
        monkeypatch.delenv("ROWLOCK_DEMO", raising=False)
        with django_assert_max_num_queries(100) as captured:
            assert RIBBON not in client_of("Operators").get("/admin/all/").content.decode()
        assert not any("rowlock:demo" in query["sql"] for query in captured.captured_queries)

    @pytest.mark.usefixtures("_on")
    def test_before_the_login_there_is_none(self, client):
        assert RIBBON not in client.get("/admin/login/").content.decode()

    @pytest.mark.usefixtures("_on")
    def test_only_who_may_end_tasks_has_its_buttons(self):
        with director():
            assert 'data-action="demo-stop"' in client_of("Operators").get(PAGE).content.decode()
            text = client_of("Viewers", username="vera").get(PAGE).content.decode()
        assert 'data-action="demo' not in text
        assert "tasks.cancel_task" in text

    @pytest.mark.usefixtures("_on")
    def test_it_costs_one_query(self, monkeypatch, django_assert_max_num_queries):
        client = client_of("Viewers")
        counts = []
        for is_on in ("1", "0"):
            monkeypatch.setenv("ROWLOCK_DEMO", is_on)
            with django_assert_max_num_queries(100) as captured:
                client.get("/admin/ops/audit/")
            counts.append(len(captured))
        assert counts[0] == counts[1] + 1


class TestThePage:
    def test_without_the_demo_it_reads_none_of_the_tables_and_says_how_to_load_one(self, django_assert_max_num_queries):
        client = client_of("Viewers")
        with django_assert_max_num_queries(100) as captured:
            text = client.get(PAGE).content.decode()
        assert "prepare_site --demo" in text
        assert not any("orders_order" in query["sql"] for query in captured.captured_queries)

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
        Queue.objects.create(name=demo.REPORTS)

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
        Task.objects.filter(pk=task.pk).update(claimed_by="w2", attempt=2, started_at=at + data.timedelta(seconds=0.75))
        [kill] = control.kills()
        assert (kill.convicted_seconds, kill.seconds, kill.taken_by) == (0, 0.75, "w2")
        assert "0.75 s" in client_of("Viewers").get(PAGE).content.decode()


class TestRemoving:
    def test_the_preview_removes_nothing_and_counts(self):
        data.load_once()
        text = client_of("Operators").get(REMOVE).content.decode()
        assert f"<dd>{Task.objects.count()}</dd>" in text
        assert Order.objects.count() == 13

    def test_only_the_demo_goes(self):
        data.load_once()
        task = rows.completed(queue_name=demo.REPORTS)
        RefusedWrite.objects.create(task_id=task.pk, worker_id="w", expected_version=1, intent="complete")
        kept = [rows.ready(queue_name="payouts"), rows.failed(queue_name="my-demo-reports"), rows.ready()]
        order = Order.objects.create(customer_email="ada@example.test.com")
        Queue.objects.create(name="payouts", paused=True)
        ExpectedCommand.objects.create(name="nightly-report", every=data.timedelta(hours=1))

        client_of("Operators").post(REMOVE, {"reason": "seen it"})

        assert set(Task.objects.values_list("pk", flat=True)) == {task.pk for task in kept}
        assert list(Order.objects.all()) == [order]
        assert [queue.name for queue in Queue.objects.all()] == ["payouts"]
        assert [command.name for command in ExpectedCommand.objects.all()] == ["nightly-report"]
        assert not RefusedWrite.objects.exists()
        assert Intervention.objects.get(action="demo-remove").reason == "seen it"

    def test_a_second_time_does_nothing_and_leaves_no_line(self):
        data.load_once()
        removal.remove(ANNA)
        removal.remove(ANNA)
        assert Intervention.objects.filter(action="demo-remove").count() == 1

    def test_what_a_dead_worker_left_goes_too(self):
        rows.processing("w-gone", queue_name=demo.PAYOUTS)
        assert removal.remove(ANNA)["tasks"] == 1

    def test_what_a_living_worker_is_at_stays_until_it_is_done(self):
        with rows.living_worker() as worker_id:
            task = rows.processing(worker_id, queue_name=demo.REPORTS)
            assert removal.remove(ANNA)["tasks"] == 0
        assert Task.objects.get() == task

    def test_a_row_that_somebody_holds_stays_and_that_is_said(self):
        data.load_once()
        order = Order.objects.first()
        with session() as holder:
            holder.execute("SELECT 1 FROM orders_order WHERE id = %s FOR UPDATE", [order.pk])
            answer = client_of("Operators").post(REMOVE, follow=True)
        assert list(Order.objects.all()) == [order]
        assert "remove again" in answer.content.decode()
        assert control.state().is_loaded, "the ribbon still offers to remove it"

    def test_a_director_that_does_not_end_keeps_everything(self, monkeypatch):
        data.load_once()
        monkeypatch.setattr(control, "STOP_SECONDS", 0.1)
        with director():
            client_of("Operators").post(REMOVE)
        assert Order.objects.count() == 13


class TestTheCommand:
    def test_without_a_director_it_says_how_to_start_one(self):
        done = run("demo", "--kill-worker")
        assert done.status == 1
        assert "manage.py direct_demo" in done.stderr

    def test_what_is_left_because_somebody_holds_it_is_told(self):
        data.load_once()
        with rows.living_worker() as alive:
            rows.processing(alive, queue_name=demo.REPORTS)
            held = run("demo", "--remove", "--json")
        assert (held.status, held.data["removed"]["queues"]) == (1, 0)
        assert "remove again" in held.stderr
        Task.objects.update(status="READY", claimed_by=None)
        assert run("demo", "--remove").status == 0
        assert not control.state().is_loaded

    def test_a_dry_run_removes_nothing(self):
        data.load_once()
        done = run("demo", "--remove", "--dry-run", "--json")
        assert done.data["removed"]["orders"] == 13
        assert Order.objects.count() == 13

    def test_without_an_option_it_says_how_the_demo_stands(self):
        data.load_once()
        with director():
            done = run("demo", "--json")
        assert (done.data["running"], done.data["orders"]) == (True, 13)
