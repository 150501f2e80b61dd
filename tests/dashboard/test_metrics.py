"""`/metrics`: what it says, at what cost, and that it says something when half of the database does not answer."""

from datetime import timedelta
from itertools import chain

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from psycopg.errors import QueryCanceled

from dashboard.metrics import LONGEST, MOST, label
from orders.models import Order
from tasks.models import Attempt, ExpectedCommand, Lock, Queue, RefusedWrite, Task, Throughput
from tasks.queue import throughput
from tests import old_rows
from tests.sessions import session, wait_until_blocked
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
TOKEN = "a token of the tests"


@pytest.fixture(autouse=True)
def every_look_is_fresh(settings):
    settings.SHARED_LOOK_SECONDS = 0
    settings.METRICS_TOKEN = TOKEN


def scrape() -> dict[tuple, float]:
    """The value of each series, by its name and its label values."""
    answer = Client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    samples = list(chain.from_iterable(family.samples for family in text_string_to_metric_families(answer.text)))
    series = {(sample.name, *queue_first(sample.labels)): sample.value for sample in samples}
    assert len(series) == len(samples), "a series twice: Prometheus would refuse the scrape"
    return series


def queue_first(labels: dict[str, str]) -> list[str]:
    return [labels[name] for name in sorted(labels, key=lambda name: (name != "queue", name))]


def test_an_empty_system_has_a_value_for_everything_that_alerts_ask_for():
    found = scrape()
    assert found["rowlock_blocked_sessions",] == 0
    assert found["rowlock_refused_writes_last_hour",] == 0
    assert found["rowlock_recoveries_last_hour",] == 0
    assert found["rowlock_workers", "dead"] == found["rowlock_workers", "alive"] == 0
    assert found["rowlock_lock_waits", "transactionid"] == 0
    assert found["rowlock_commands_overdue",] == 0
    assert [key for key in found if key[0] == "rowlock_scrape_errors" and found[key]] == []


def test_queues_by_depth_and_age():
    rows.ready(run_after=timezone.now() - timedelta(minutes=5))
    rows.ready(run_after=timezone.now() + timedelta(hours=1))
    rows.failed(queue_name="mail"), rows.processing(rows.dead_worker(), queue_name="mail")
    Queue.objects.create(name="mail", paused=True, recovery="ask")
    found = scrape()
    assert [found["rowlock_queue_tasks", "default", state] for state in ("ready", "scheduled", "failed")] == [1, 1, 0]
    assert [found["rowlock_queue_tasks", "mail", state] for state in ("processing", "stale", "failed")] == [1, 1, 1]
    assert 300 <= found["rowlock_queue_oldest_ready_seconds", "default"] < 400
    assert found["rowlock_queue_oldest_ready_seconds", "mail"] == 0
    assert (found["rowlock_queue_paused", "default"], found["rowlock_queue_paused", "mail"]) == (0, 1)
    assert (found["rowlock_queue_asks", "default"], found["rowlock_queue_asks", "mail"]) == (0, 1)


def test_workers_by_life_and_by_the_queues_they_serve():
    rows.processing(rows.dead_worker())
    with rows.living_worker(queues=["mail"]):
        found = scrape()
    assert (found["rowlock_workers", "alive"], found["rowlock_workers", "dead"]) == (1, 1)
    assert (found["rowlock_queue_live_workers", "mail"], found["rowlock_queue_live_workers", "default"]) == (1, 0)


def test_finished_attempts_and_their_times_as_counters_and_histograms():
    Throughput.objects.create(
        minute=timezone.now(), queue_name="default", shard=1, completed=3, failed=2, run_ms=2500, wait_ms=30,
        run_buckets=[0, 1, *[0] * 5, 2, *[0] * 8], wait_buckets=[3, *[0] * 15],
    )  # fmt: skip
    found = scrape()
    assert found["rowlock_attempts_finished_total", "default", "completed"] == 3
    assert found["rowlock_attempts_finished_total", "default", "failed"] == 2
    assert found["rowlock_run_seconds_sum", "default"] == 2.5
    assert found["rowlock_run_seconds_count", "default"] == found["rowlock_run_seconds_bucket", "default", "+Inf"] == 3
    assert [found["rowlock_run_seconds_bucket", "default", bound] for bound in ("0.005", "0.01", "0.5", "1.0")] == [
        0,
        1,
        1,
        3,
    ]
    assert found["rowlock_claim_seconds_bucket", "default", "0.005"] == 3


def test_late_writes_recoveries_and_failures_of_the_last_hour():
    task = rows.ready()
    old = timezone.now() - timedelta(hours=2)
    for outcome in ("abandoned", "abandoned", "failed"):
        Attempt.objects.create(task=task, number=1, worker_id="w", outcome=outcome)
    Attempt.objects.create(task=task, number=1, worker_id="w", outcome="abandoned", finished_at=old)
    for at in (old, timezone.now()):
        RefusedWrite.objects.create(task_id=1, worker_id="w", expected_version=1, intent="complete", at=at)
    found = scrape()
    assert found["rowlock_recoveries_last_hour",] == found["rowlock_attempts_last_hour", "abandoned"] == 2
    assert found["rowlock_attempts_last_hour", "failed"] == 1
    assert found["rowlock_refused_writes_last_hour",] == 1


def test_a_blocked_session_its_wait_and_the_transaction_behind():
    task = rows.ready()
    with session() as holder, session() as waiter:
        holder.execute("UPDATE tasks_task SET priority = 1 WHERE id = %s", [task.pk])
        waiter.execute("BEGIN")
        with waiter.cursor() as cursor:
            waiter.pgconn.send_query(b"UPDATE tasks_task SET priority = 2")
            wait_until_blocked(waiter.info.backend_pid)
            found = scrape()
            waiter.cancel_safe()
            assert cursor
    assert found["rowlock_blocked_sessions",] == found["rowlock_lock_waits", "transactionid"] == 1
    assert found["rowlock_sessions", "idle_in_transaction"] == 1
    assert found["rowlock_longest_transaction_seconds",] >= found["rowlock_longest_idle_in_transaction_seconds",] > 0
    assert found["rowlock_longest_lock_wait_seconds",] > 0
    assert found["rowlock_deadlocks_total",] >= 0


def test_overdue_commands_expired_locks_and_e_mails_of_unknown_fate():
    now, old = timezone.now(), timezone.now() - timedelta(hours=2)
    ExpectedCommand.objects.create(name="nightly", every=timedelta(hours=1), since=old)
    Lock.objects.create(name="a", owner="o", acquired_at=old, expires_at=old)
    Lock.objects.create(name="b", owner="p", acquired_at=now, expires_at=now + timedelta(hours=1))
    Order.objects.create(customer_email="a@example.test", shipped_at=now, email_state="unknown")
    Order.objects.create(customer_email="b@example.test", shipped_at=now)
    found = scrape()
    assert found["rowlock_commands_overdue",] == 1
    assert 3600 <= found["rowlock_command_overdue_seconds", "nightly"] < 3700
    assert (found["rowlock_named_locks", "held"], found["rowlock_named_locks", "expired"]) == (1, 1)
    assert (found["rowlock_order_emails", "to_send"], found["rowlock_order_emails", "unknown"]) == (1, 1)


HOSTILE = ['"} 1\nrowlock_up 0', "back\\slash", "\u202egpj.exe", "<script>alert(1)</script>", "tab\tand \x01"]


def test_hostile_names_stay_label_values():
    with old_rows.unchecked():
        for name in HOSTILE:
            rows.ready(queue_name=name)
    found = scrape()
    assert {key[1] for key in found if key[0] == "rowlock_queue_paused"} == set(map(label, HOSTILE))
    assert ("rowlock_up",) not in found
    assert all(name.isprintable() for key in found for name in key)


@pytest.mark.parametrize(
    "name", ["a\x1b[2Jb", "a\x9bb", "a\nb", "a\N{RIGHT-TO-LEFT OVERRIDE}b", "a\N{LINE SEPARATOR}b"]
)
def test_no_label_acts_on_the_terminal_or_page_that_shows_it(name):
    assert label(name).isprintable()
    assert label(name) not in (label(name.replace("b", "c")), label("a?b"), name)


def test_long_names_are_cut_and_stay_different():
    with old_rows.unchecked():
        rows.ready(queue_name="x" * 3000), rows.ready(queue_name="x" * 3001)
    names = {key[1] for key in scrape() if key[0] == "rowlock_queue_paused"}
    assert len(names) == 2
    assert {len(name) for name in names} == {LONGEST}


def test_a_thousand_names_do_not_hide_the_queues_that_workers_serve():
    Task.objects.bulk_create(Task(task_path="x", queue_name=f"aaa {number}") for number in range(MOST + 20))
    Task.objects.bulk_create(Task(task_path="x", queue_name=f"aaa {number}") for number in range(MOST + 20))
    with rows.living_worker(queues=["zzz"]):
        found = scrape()
    assert len([key for key in found if key[0] == "rowlock_queue_paused"]) == MOST
    assert found["rowlock_queue_live_workers", "zzz"] == 1
    assert found["rowlock_queues_hidden",] == 21


def test_the_number_of_statements_does_not_grow_with_the_rows():
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            scrape()
        return len(queries)

    rows.ready(), rows.failed(), rows.processing("w-gone")
    few = statements()
    for number in range(10):
        rows.ready(queue_name=f"q{number}"), rows.failed(queue_name=f"q{number}"), rows.processing(f"w{number}")
        ExpectedCommand.objects.create(name=f"c{number}", every=timedelta(hours=1))
    assert statements() == few
    assert few <= 60


def test_two_scrapes_within_a_second_cost_one(settings):
    settings.SHARED_LOOK_SECONDS = 60
    scrape()
    with CaptureQueriesContext(connection) as queries:
        scrape()
    settings.SHARED_LOOK_SECONDS = 0
    assert len(queries) == 0


def test_while_somebody_holds_the_table_of_tasks_the_sessions_are_still_told():
    with session() as holder:
        holder.execute("LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
        found = scrape()
    assert found["rowlock_scrape_errors", "queues"] == 1
    assert found["rowlock_scrape_errors", "sessions"] == 0
    assert found["rowlock_sessions", "idle_in_transaction"] == 1
    assert not [key for key in found if key[0] == "rowlock_queue_tasks"]


def gives_up() -> None:
    raise OperationalError("canceling statement due to statement timeout") from QueryCanceled()


def goes_away() -> None:
    raise OperationalError("server closed the connection unexpectedly") from psycopg.OperationalError()


def test_an_answer_that_another_thread_waited_for_in_vain_is_left_out_here_too(monkeypatch):
    """This thread has no connection then: that must not look as if the database were away."""
    monkeypatch.setattr(throughput, "totals", gives_up)
    connection.close()
    found = scrape()
    assert found["rowlock_scrape_errors", "finished"] == 1
    assert found["rowlock_scrape_errors", "sessions"] == 0


def test_without_a_database_the_scrape_fails_as_a_whole(monkeypatch):
    monkeypatch.setattr(throughput, "totals", goes_away)
    assert Client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 503
