"""What the sampler of the lock history keeps of who waits for whom, and that one process of all samples."""

import pytest
from django.db import connection

from dashboard.locks import history
from dashboard.locks.history import Sampler, SamplingThread
from dashboard.models import Deadlocks, LockWait
from orders.models import Order
from tasks.models import Worker
from tests.commands import run
from tests.dashboard.scenes import LOCK_ORDER, Scene, queue_for_one_row, staged
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class TestSampling:
    def test_a_wait_is_one_row_however_often_it_is_sampled(self) -> None:
        order = Order.objects.create(customer_email="a@example.test")
        with Scene() as scene:
            scene.holding("psql", LOCK_ORDER, [order.pk])
            scene.waiting("rowlock:cmd:ship", LOCK_ORDER, [order.pk])
            sampler = Sampler(connection)
            assert [sampler.sample(), sampler.sample()] == [1, 1]
            row = LockWait.objects.get()
            assert (row.blocked_pid, row.blocker_pid) == (scene.pid("rowlock:cmd:ship"), scene.pid("psql"))
            assert (row.blocked_who, row.blocker_who) == ("rowlock:cmd:ship", "psql")
            assert (row.target, row.blocker_state) == (f"order {order.pk}", "idle in transaction")
            before = row.last_seen
            sampler.sample()
            row.refresh_from_db()
            assert row.last_seen > before > row.waiting_since

    def test_another_sampler_goes_on_with_the_same_row(self) -> None:
        """The elected process may die in the middle of a wait."""
        with staged():
            assert Sampler(connection).sample() == Sampler(connection).sample() == 5
            assert LockWait.objects.count() == 5

    def test_a_queue_is_one_row_for_each_that_waits(self) -> None:
        """Not one for each pair: each of ten waits for all before it, which would be 55."""
        with queue_for_one_row(waiters=10, bystanders=0):
            Sampler(connection).sample()
            assert LockWait.objects.count() == 10

    def test_a_quiet_database_costs_one_statement_and_no_row(self, django_assert_num_queries) -> None:
        sampler = Sampler(connection)
        sampler.sample()
        with django_assert_num_queries(4):  # begin, limits, a glance, commit
            assert sampler.sample() == 0
        assert not LockWait.objects.exists()

    def test_the_tasks_of_both_workers_are_kept(self) -> None:
        order = Order.objects.create(customer_email="a@example.test")
        tasks = {worker: rows.processing(worker).pk for worker in ("w1", "w2")}
        for worker, task in tasks.items():
            Worker.objects.create(id=worker, hostname="h", pid=1, current_task_id=task)
        with Scene() as scene:
            scene.holding("rowlock:worker:w1", LOCK_ORDER, [order.pk])
            scene.waiting("rowlock:worker:w2", LOCK_ORDER, [order.pk])
            Sampler(connection).sample()
        row = LockWait.objects.get()
        assert (row.blocker_task, row.blocked_task) == (tasks["w1"], tasks["w2"])

    def test_secrets_are_not_kept(self) -> None:
        order = Order.objects.create(customer_email="a@example.test")
        with Scene() as scene:
            scene.holding("psql", LOCK_ORDER, [order.pk])
            scene.waiting("one", "SELECT 'hunter2' AS password FROM orders_order WHERE id = %s FOR UPDATE", [order.pk])
            Sampler(connection).sample()
        assert "hunter2" not in LockWait.objects.get().blocked_query

    def test_deadlocks_are_counted_from_what_was_written_last(self) -> None:
        sampler = Sampler(connection)
        sampler.sample()
        first = Deadlocks.objects.get()
        assert first.number == 0
        Deadlocks.objects.update(total=first.total - 3)
        Sampler(connection).sample()
        assert Deadlocks.objects.latest("id").number == 3
        Deadlocks.objects.create(number=0, total=first.total + 100)
        Sampler(connection).sample()
        assert Deadlocks.objects.latest("id").number == first.total, "the statistics were reset"


class TestTheThread:
    def test_one_of_two_samples_and_the_other_takes_over(self) -> None:
        order = Order.objects.create(customer_email="a@example.test")
        threads = [SamplingThread(every_seconds=0.05, ask_again_seconds=0.05) for _ in range(2)]
        with Scene() as scene:
            scene.holding("psql", LOCK_ORDER, [order.pk])
            scene.waiting("one", LOCK_ORDER, [order.pk])
            for thread in threads:
                thread.start()
            try:
                wait_until(LockWait.objects.exists)
                wait_until(lambda: len(elected()) == 1)
                [first] = elected()
                terminate(first)
                wait_until(lambda: elected() not in ([], [first]))
            finally:
                for thread in threads:
                    thread.stop()
                    thread.join(10)
        assert LockWait.objects.count() == 1

    def test_a_database_without_the_tables_is_asked_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "ELECT", "SELECT 1 FROM no_such_table")
        thread = SamplingThread(every_seconds=0.01, ask_again_seconds=0.01)
        thread.start()
        monkeypatch.undo()
        wait_until(lambda: bool(elected()))
        thread.stop()
        thread.join(10)


def elected() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT lock.pid FROM pg_locks AS lock JOIN pg_stat_activity AS session USING (pid) "
            "WHERE application_name = 'rowlock:web:sampler' AND locktype = 'advisory' AND granted"
        )
        return [pid for (pid,) in cursor.fetchall()]


def terminate(pid: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])


def test_the_samplers_session_is_the_dashboards_own() -> None:
    with session("rowlock:web:sampler") as own:
        own.execute("SELECT 1")
        outcome = run("show_locks", "--json").data["sessions"]
    assert [row["who"] for row in outcome if row["application_name"] == "rowlock:web:sampler"] == ["web sampler"]
