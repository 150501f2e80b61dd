"""Which troubles stand in "Needs attention" and in which order: each source on both sides of its line."""

import contextlib
import re
import threading
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from dashboard import failures
from dashboard.attention import inbox, thresholds
from orders.models import Order
from tasks import panels
from tasks.models import (
    Attempt,
    Epoch,
    ExpectedCommand,
    Lock,
    Queue,
    RecoveryFailure,
    Task,
    Worker,
)
from tasks.panels import AttentionLine, Severity, Snapshot
from tasks.queue import presence
from tests.people import client_of, person
from tests.sessions import session, wait_until_blocked
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)


def lines(*groups: str) -> dict[str, AttentionLine]:
    """The inbox by the keys of its lines, in its order."""
    return {line.key: line for line in inbox.gather(Snapshot(), person(*(groups or ("Viewers",))).has_perm).lines}


def ago(**duration: float):
    return timezone.now() - timedelta(**duration)


def failed(number: int = 1, path: str = "app.charge", error: str = "app.errors.Declined") -> list[Task]:
    tasks = [rows.failed(task_path=path) for _ in range(number)]
    for task in tasks:
        Attempt.objects.create(
            task=task, number=5, worker_id="w", outcome="failed", exception_class=error, finished_at=ago(minutes=1)
        )
    return tasks


def set_aside(kind: str, task_id: int | None, worker_id: str, error: str) -> None:
    RecoveryFailure.objects.create(
        target=f"{kind}:{task_id or worker_id}",
        task_id=task_id,
        worker_id=worker_id,
        error=error,
        retry_at=ago(seconds=9),
    )


def wait_in_vain(conn: psycopg.Connection) -> None:
    with contextlib.suppress(psycopg.errors.QueryCanceled):
        conn.execute("LOCK TABLE orders_entry")
    conn.rollback()


def test_a_good_night_is_empty():
    rows.completed(), rows.cancelled(), rows.ready(run_after=timezone.now() + timedelta(hours=1))
    assert lines() == {}


class TestQueues:
    def test_due_tasks_and_no_worker_at_all(self):
        rows.many(2, queue_name="a", run_after=ago(minutes=9)), rows.ready(queue_name="b")
        found = lines()
        assert list(found) == ["no-worker"]
        line = found["no-worker"]
        assert (line.size, line.severity) == (3, Severity.STOPPED)
        assert line.since is not None
        assert 530 < (timezone.now() - line.since).total_seconds() < 600
        assert line.step.command == "python manage.py run_worker"

    @pytest.mark.parametrize(("ended", "reason", "since"), [(None, "", 60), (9, "convicted", 60), (50, "stopped", 50)])
    def test_no_worker_is_alive_since_the_last_one_ended_and_not_since_a_task_waits(self, ended, reason, since):
        """It was last heard a minute ago; if it is dead, people may have looked and convicted it long after."""
        rows.ready(queue_name="a", run_after=ago(minutes=9))
        rows.just_died_worker("former", queues=["a"])
        Worker.objects.update(stopped_at=ago(minutes=8), stop_reason="stopped")
        rows.just_died_worker("last", queues=["b"])
        at = ended and ago(seconds=ended)
        Worker.objects.filter(pk="last").update(heartbeat_at=ago(minutes=1), stopped_at=at, stop_reason=reason)
        line = lines()["no-worker"]
        assert line.since is not None
        assert since <= (timezone.now() - line.since).total_seconds() < since + 9

    def test_a_queue_is_unserved_since_the_last_worker_that_served_it(self):
        rows.ready(queue_name="a", run_after=ago(minutes=9)), rows.ready(queue_name="c", run_after=ago(minutes=7))
        for name, minutes, queues in (("one", 3, ["a", "x"]), ("two", 2, ["b"])):
            rows.dead_worker(name)
            Worker.objects.filter(pk=name).update(queues=queues, stopped_at=ago(minutes=minutes), stop_reason="stopped")
        with rows.living_worker(queues=["d"]):
            found = lines()
        ages = {key: round((timezone.now() - line.since).total_seconds() / 60) for key, line in found.items()}
        assert ages == {"unserved:a": 3, "unserved:c": 7}, "nobody ever served c"

    def test_a_queue_that_no_live_worker_serves(self):
        rows.ready(queue_name="a"), rows.ready(queue_name="b")
        with rows.living_worker(queues=["a"]):
            found = lines()
        assert list(found) == ["unserved:b"]
        assert found["unserved:b"].step.command == "python manage.py run_worker --queue b"

    def test_a_worker_without_named_queues_serves_all(self):
        rows.ready(queue_name="a")
        with rows.living_worker(queues=[]):
            assert lines() == {}

    def test_what_somebody_has_paused_waits_on_purpose(self):
        Queue.objects.create(name="a", paused=True)
        rows.ready(queue_name="a", run_after=ago(hours=3))
        assert lines() == {}
        with rows.living_worker():
            assert lines() == {}

    @pytest.mark.parametrize(("minutes", "is_late"), [(4, False), (6, True)])
    def test_a_task_that_waits_too_long_although_it_is_served(self, minutes, is_late):
        rows.ready(queue_name="a", run_after=ago(minutes=minutes))
        with rows.living_worker():
            assert list(lines()) == (["late:a"] if is_late else [])

    @pytest.mark.parametrize(("minutes", "is_late"), [(4, False), (6, False), (11, True)])
    def test_an_objective_goes_before_the_usual_wait(self, minutes, is_late):
        Queue.objects.create(name="a", objective=timedelta(minutes=10))
        rows.ready(queue_name="a", run_after=ago(minutes=minutes))
        with rows.living_worker():
            found = lines()
        assert list(found) == (["late:a"] if is_late else [])
        assert not is_late or found["late:a"].why == "Its objective is 10 min. 1 task is due."

    def test_a_pause_does_not_excuse_a_missed_objective(self):
        Queue.objects.create(name="a", objective=timedelta(seconds=30), paused=True)
        rows.ready(queue_name="a", run_after=ago(minutes=1))
        line = lines()["late:a"]
        assert line.why == "Its objective is 30 s. 1 task is due. The queue is paused."
        assert line.step.command == "python manage.py resume_queue a"


class TestStale:
    def test_a_queue_that_asks_a_person(self):
        Queue.objects.create(name="payouts", recovery="ask")
        with rows.living_worker():
            rows.processing(rows.just_died_worker(), queue_name="payouts")
            found = lines()
        line = found["stale:payouts"]
        assert line.since is not None
        assert "is manual" in line.why
        assert line.step.url == "/admin/ops/stale/?queue=payouts"

    def test_recovery_has_its_seconds_before_anybody_is_called(self):
        with rows.living_worker():
            rows.processing(rows.just_died_worker(), queue_name="mail")
            assert lines() == {}
            Worker.objects.filter(pk="w-died").update(stopped_at=ago(seconds=11))
            assert list(lines()) == ["stale:mail"]

    def test_without_a_living_worker_nothing_recovers_by_itself(self):
        rows.processing(rows.just_died_worker(), queue_name="mail")
        assert "No live worker" in lines()["stale:mail"].why

    def test_it_says_the_verdict_of_the_task_and_of_the_page_of_stuck_tasks(self):
        Queue.objects.create(name="pay", recovery="ask")
        rows.processing(rows.just_died_worker(), queue_name="pay")
        assert lines()["stale:pay"].text == "1 task in pay: worker dead."
        with rows.living_worker("w-silent", lease_seconds=30):
            epoch = {"token": presence.see_epoch(connection), "first_seen_at": timezone.now()}
            Epoch.objects.update_or_create(pk=1, defaults=epoch)
            Worker.objects.filter(pk="w-silent").update(heartbeat_at=ago(seconds=31))
            rows.processing("w-silent", queue_name="pay")
            assert lines()["stale:pay"].text == "2 tasks in pay: worker dead, worker silent."
            [figure] = [found for found in inbox.figures(Snapshot(), lambda _: True) if found.label == "Workers"]
            assert (figure.value, figure.note) == ("0 of 2", "1 dead, 1 silent")
            page = client_of("Viewers").get("/admin/ops/workers/")
            assert {line.worker.id: line.life for line in page.context["board"].lines} == {
                "w-died": "Worker dead", "w-silent": "Worker silent",
            }  # fmt: skip
            page = client_of("Viewers").get("/admin/ops/stale/")
            assert {group.worker.id: group.label for group in page.context["seen"].groups} == {
                "w-died": "Worker dead", "w-silent": "Worker silent",
            }  # fmt: skip
            page = client_of("Viewers").get("/admin/tasks/task/why/pay/")
            assert "2 of them: worker dead, worker silent" in page.text

    def test_what_the_database_refuses_to_recovery(self):
        """One line for each, with its error, for as long as it is as it was."""
        with rows.living_worker() as alive:
            tasks = [rows.processing(rows.dead_worker(), queue_name="mail"), rows.processing(alive), rows.ready()]
            for task in tasks:
                set_aside("task", task.pk, "w-dead", "never from mail")
            set_aside("worker", None, alive, "not this one")
            set_aside("worker", None, "w-dead", "it has stopped meanwhile")
            found = lines()
        task, worker = found[f"refused:task:{tasks[0].pk}"], found[f"refused:worker:{alive}"]
        assert [key for key in found if key.startswith("refused:")] == [
            f"refused:task:{tasks[0].pk}",
            f"refused:worker:{alive}",
        ]
        assert task.text == f"Task #{tasks[0].pk} cannot be taken back from its dead worker: never from mail"
        assert (task.step.url, task.is_red) == (f"/admin/tasks/task/{tasks[0].pk}/", True)
        assert worker.text == f"Recovery cannot judge the worker {alive}: not this one"

    def test_a_restart_is_told_and_not_red(self):
        Worker.objects.create(id="w", hostname="h", pid=1, presence_epoch="before", lease_seconds=3600)
        Epoch.objects.update_or_create(pk=1, defaults={"token": "x", "first_seen_at": timezone.now()})
        line = lines()["restarted"]
        assert "recovery waits until" in line.text
        assert not line.is_red


class TestFailures:
    def test_groups_by_task_and_exception(self):
        failed(3), failed(2, error="KeyError"), failed(1, path="app.send")
        found = lines()
        assert {key: line.size for key, line in found.items()} == {
            "failed:app.charge:app.errors.Declined": 3,
            "failed:app.charge:KeyError": 2,
            "failed:app.send:app.errors.Declined": 1,
        }
        line = found["failed:app.charge:app.errors.Declined"]
        assert line.text == "app.charge failed 3 times: Declined."
        assert line.step.url == "/admin/tasks/task/?status=FAILED&task=app.charge&error=app.errors.Declined"
        assert line.step.command.endswith("--status FAILED --task app.charge --error app.errors.Declined")

    def test_the_latest_attempt_says_why(self):
        [task] = failed(error="First")
        Attempt.objects.create(task=task, number=6, worker_id="w", outcome="failed", exception_class="Second")
        assert list(lines()) == ["failed:app.charge:Second"]

    def test_failed_without_any_attempt_on_record(self):
        rows.failed(task_path="app.lost")
        assert list(lines()) == ["failed:app.lost:"]

    def test_what_is_retried_is_no_failure_yet(self):
        task = rows.ready(attempt=1)
        Attempt.objects.create(task=task, number=1, worker_id="w", outcome="failed", exception_class="E")
        with rows.living_worker():
            assert lines() == {}


def is_critical(monkeypatch: pytest.MonkeyPatch, *, sessions: int, seconds: int) -> bool:
    """True if the one blocked session is critical under these thresholds."""
    for name, value in (("seconds", 0), ("sessions", sessions), ("long_seconds", seconds)):
        monkeypatch.setitem(thresholds.USUAL, f"blocked_{name}", value)
    [line] = lines().values()
    return line.is_critical


class TestSessions:
    def test_who_blocks_whom_with_the_root_first(self, monkeypatch):
        with session("psql") as root, session("waiter") as waiter:
            pids = root.info.backend_pid, waiter.info.backend_pid
            root.execute("LOCK TABLE orders_entry")
            thread = threading.Thread(target=wait_in_vain, args=(waiter,))
            thread.start()
            wait_until_blocked(pids[1])
            assert lines() == {}, "not every wait is worth a line"
            assert is_critical(monkeypatch, sessions=2, seconds=60) is False
            assert is_critical(monkeypatch, sessions=1, seconds=60) is True
            assert is_critical(monkeypatch, sessions=2, seconds=0) is True
            monkeypatch.undo()
            monkeypatch.setitem(thresholds.USUAL, "blocked_seconds", 0)
            [line] = lines().values()
            waiter.cancel_safe()
            thread.join(10)
        assert re.match(r"1 session blocked for [\d.]+ m?s by pid ", line.text)
        assert f"pid {pids[0]} (psql, idle in transaction)" in line.text
        assert (line.severity, line.size) == (Severity.LOSING, 1)
        assert line.step.url == f"/admin/ops/locks/#node-{pids[0]}"

    def test_f11_a_transaction_that_nobody_works_in(self, monkeypatch):
        with session("psql") as conn:
            conn.execute("SELECT 1")
            assert lines() == {}
            monkeypatch.setitem(thresholds.USUAL, "idle_seconds", 0)
            [line] = lines().values()
            assert f"pid {conn.info.backend_pid} (psql" in line.text
            assert line.step.url == f"/admin/ops/locks/#node-{conn.info.backend_pid}"


class TestOrders:
    def test_emails_of_unknown_fate(self):
        Order.objects.create(
            customer_email="a@example.test", shipped_at=ago(hours=2), email_state="unknown", email_since=ago(hours=1)
        )
        Order.objects.create(customer_email="b@example.test", shipped_at=ago(hours=2))
        line = lines()["orders:unknown"]
        assert line.size == 1
        assert line.since is not None


def test_the_worst_comes_first_and_among_equals_the_oldest():
    ExpectedCommand.objects.create(name="report", every=timedelta(hours=1), since=ago(hours=9))
    failed()
    Lock.objects.create(
        name="l", owner="o", fence=7, acquired_at=ago(days=9), renewed_at=ago(days=9), expires_at=ago(days=8)
    )
    rows.ready()
    assert list(lines()) == ["no-worker", "overdue:report", "failed:app.charge:app.errors.Declined", "lock:l:7"]


def test_each_line_needs_the_right_of_its_page():
    failed()
    Order.objects.create(customer_email="a@example.test", shipped_at=ago(hours=2), email_state="unknown")
    assert len(lines()) == 2
    nobody = person(username="nobody")
    assert inbox.gather(Snapshot(), nobody.has_perm).lines == []


def test_a_held_table_hides_its_own_lines_only():
    rows.ready()
    ExpectedCommand.objects.create(name="report", every=timedelta(hours=1), since=ago(hours=9))
    with session("migration") as conn:
        conn.execute("LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
        found, pid = lines(), conn.info.backend_pid
    assert list(found)[:1] == ["untold"]
    assert "overdue:report" in found
    assert "no-worker" not in found
    assert f"pid {pid} · migration · " in found["untold"].why
    assert f"signal_backend {pid} --started" in found["untold"].step.command


def test_who_holds_the_table_is_told_to_whoever_may_see_sessions():
    with session("migration") as conn:
        conn.execute("LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
        [line] = inbox.gather(Snapshot(), lambda right: right == "tasks.view_task").lines
        assert str(conn.info.backend_pid) not in f"{line.why} {line.step.command}"
    assert line.step.command == "python manage.py show_locks --tree"


@pytest.mark.parametrize("address", ["/admin/", "/admin/ops/audit/", "/admin/ops/schedule/"])
def test_pages_open_while_a_migration_holds_the_tasks(address):
    client = client_of("Viewers")
    with session("migration") as conn:
        conn.execute("LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
        assert client.get(address).status_code == 200


def test_a_fault_in_one_source_leaves_the_others(monkeypatch, caplog):
    def broken(snapshot: Snapshot) -> list[AttentionLine]:
        raise KeyError("parcels")

    panels.load()
    monkeypatch.setattr("tasks.panels.ATTENTION", [broken, *panels.ATTENTION])
    failed()
    assert list(lines()) == ["untold", "failed:app.charge:app.errors.Declined"]
    assert "test_a_fault_in_one_source_leaves_the_others.<locals>.broken" in caplog.text


FINISH_MANY = """
INSERT INTO tasks_task (task_path, status, attempt, finished_at)
SELECT 'x', 'COMPLETED', 1, now() FROM generate_series(1, 5000)
"""


def test_no_statement_of_ours_scans_the_finished_tasks():
    """With many finished rows, the groups of failures come from the partial index alone."""
    failed(3)
    with connection.cursor() as cursor:
        cursor.execute(FINISH_MANY)
        cursor.execute("ANALYZE tasks_task, tasks_attempt")
        params = {"window": failures.WINDOW, "grouped": failures.GROUPED, "groups": failures.GROUPS}
        cursor.execute(f"EXPLAIN {failures.FAILED_GROUPS}", params)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Seq Scan on tasks_task" not in plan, plan
    assert "tasks_task_unsuccessful" in plan, plan
