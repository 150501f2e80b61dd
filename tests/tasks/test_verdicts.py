"""The verdict on a task: the decision on facts that are given, and the facts as the database tells them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tasks import actions, verdicts
from tasks.audit import Who
from tasks.locking.rowlocks import Hold, Locker, RowLock
from tasks.models import Attempt, Queue, Task, Worker
from tasks.presence import WorkerState
from tasks.verdicts import Facts, Finding, KeyState, Link, Verdict, WorkerSession
from tests.sessions import session
from tests.tasks import rows

NOW = datetime(2026, 11, 20, 3, 12, tzinfo=UTC)
PATH = "app.tasks.pay"
LOCK = RowLock(Hold.HELD, (Locker(812, "psql", NOW, "idle in transaction", 240.0),))


def worker(**changes: Any) -> WorkerState:
    columns: dict[str, Any] = {
        "id": "w7f",
        "registered": True,
        "held": True,
        "presence_epoch": "1/0",
        "epoch": "1/0",
        "heartbeat_age_seconds": 2.0,
        "lease_seconds": 30.0,
        "missing_seconds": None,
        "epoch_age_seconds": 9000.0,
        "queues": [],
        "task_paths": [PATH],
    }
    return WorkerState(**{**columns, **changes})


def task(**columns: Any) -> Task:
    defaults = {
        "id": 4711,
        "task_path": PATH,
        "queue_name": "payouts",
        "status": "READY",
        "run_after": NOW - timedelta(seconds=3),
        "attempt": 0,
        "max_attempts": 5,
    }
    return Task(**{**defaults, **columns})


def processing(**columns: Any) -> Task:
    return task(**{"status": "PROCESSING", "claimed_by": "w7f", "started_at": NOW - timedelta(seconds=8), **columns})


def facts(*workers: WorkerState, **known: Any) -> Facts:
    return Facts(now=NOW, workers={state.id: state for state in workers or (worker(),)}, **known)


def verdict(subject: Task, known: Facts) -> Verdict:
    return verdicts.decide(subject, known).verdict


def test_a_due_task_of_a_served_queue_is_ready_at_its_place():
    found = verdicts.decide(task(), facts(positions={4711: 42}))
    assert (found.verdict, found.sentence) == (Verdict.READY, "Due; number 42 in its queue.")


def test_a_task_behind_very_many_is_not_counted():
    assert verdicts.decide(task(), facts()).sentence == "Due; more than 1000 tasks go before it."


def test_a_task_whose_time_has_not_come_waits():
    found = verdicts.decide(task(run_after=NOW + timedelta(minutes=5), attempt=2), facts())
    assert found.verdict is Verdict.WAITING
    assert found.sentence == "Attempt 3 of 5 waits until 2026-11-20 03:17:00 UTC, in 5 minutes."


def test_a_task_waits_for_the_holder_of_its_key():
    found = verdicts.decide(task(ordering_key="anna"), facts(keys={"anna": KeyState(88, 3)}))
    assert (found.verdict, found.links) == (Verdict.HELD_BY_KEY, (Link("task", "88"), Link("key", "anna")))
    assert "#88" in found.sentence


@pytest.mark.parametrize(
    ("waiting", "text"),
    [
        (0, "key “anna”."),
        (1, "1 task waits behind it."),
        (3, "3 tasks wait behind it."),
        (1001, "More than 1000 wait behind it."),
    ],
)
def test_the_holder_of_a_key_tells_how_many_wait_behind_it(waiting, text):
    found = verdicts.decide(task(ordering_key="anna"), facts(keys={"anna": KeyState(4711, waiting)}))
    assert found.verdict is Verdict.READY
    assert found.sentence.endswith(text)


def test_a_holder_that_waits_for_its_retry_tells_it_too():
    waiting = task(ordering_key="anna", run_after=NOW + timedelta(minutes=5))
    found = verdicts.decide(waiting, facts(keys={"anna": KeyState(4711, 2)}))
    assert found.verdict is Verdict.WAITING
    assert found.sentence.endswith("2 tasks wait behind it.")


def test_a_paused_queue_says_by_whom_and_since_when():
    queue = Queue(name="payouts", paused=True, paused_by="anna", paused_at=NOW - timedelta(hours=3))
    found = verdicts.decide(task(), facts(queues={"payouts": queue}))
    assert (found.verdict, found.command) == (Verdict.PAUSED, "python manage.py resume_queue payouts")
    assert found.sentence == "The queue payouts was paused by anna, 3 hours ago."


@pytest.mark.parametrize(
    "other",
    [worker(queues=["mail"]), worker(held=False, missing_seconds=1.0), worker(heartbeat_age_seconds=31.0)],
    ids=["of another queue", "dead", "silent"],
)
def test_a_queue_that_no_live_worker_serves_says_how_to_start_one(other):
    found = verdicts.decide(task(queue_name="pay outs"), facts(other))
    assert (found.verdict, found.command) == (
        Verdict.NO_WORKER,
        "python manage.py run_worker --queue 'pay outs'",
    )


def test_a_function_that_no_worker_of_the_queue_has_is_unknown():
    mine, other = worker(task_paths=["app.tasks.other"]), worker(id="w2", queues=["mail"])
    found = verdicts.decide(task(), facts(mine, other))
    assert found.verdict is Verdict.UNKNOWN_TASK
    assert PATH in found.sentence


def test_one_worker_that_knows_the_function_is_enough():
    assert verdict(task(), facts(worker(task_paths=[]), worker(id="w2"))) is Verdict.READY


def test_a_locked_row_names_its_holder():
    found = verdicts.decide(task(), facts(locks={4711: LOCK}))
    assert found.verdict is Verdict.ROW_LOCKED
    assert "Held by pid 812 (psql), in a transaction open for 4 minutes" in found.sentence


def test_a_row_whose_holder_is_uncertain_is_locked():
    found = verdicts.decide(task(), facts(locks={4711: RowLock(Hold.UNCERTAIN)}))
    assert found.verdict is Verdict.ROW_LOCKED
    assert "which one is uncertain" in found.sentence


def test_a_row_that_is_only_touched_is_ready():
    touched = RowLock(Hold.TOUCHED, LOCK.lockers)
    assert verdict(task(), facts(locks={4711: touched})) is Verdict.READY


def test_further_reasons_stand_beside_the_first():
    queue = Queue(name="payouts", paused=True)
    found = verdicts.decide(task(), facts(worker(queues=["mail"]), queues={"payouts": queue}, locks={4711: LOCK}))
    assert [found.verdict, *(other.verdict for other in found.also)] == [
        Verdict.PAUSED,
        Verdict.NO_WORKER,
        Verdict.ROW_LOCKED,
    ]


def test_a_task_its_worker_is_on_runs():
    since = worker(current_task_id=4711, current_since=NOW - timedelta(seconds=7))
    waits = WorkerSession(902, "Lock", "transactionid", (812,))
    found = verdicts.decide(processing(), facts(since, sessions={"w7f": waits}))
    assert (found.verdict, found.links) == (Verdict.RUNNING, (Link("worker", "w7f"), Link("session", "902")))
    assert found.sentence == (
        "Worker w7f has been on it for 7 seconds. Its session, pid 902, waits for Lock:transactionid, "
        "blocked by pid 812."
    )


def test_a_task_behind_another_of_its_batch_names_it():
    found = verdicts.decide(processing(), facts(worker(current_task_id=4700)))
    assert (found.verdict, found.links[-1]) == (Verdict.IN_BATCH, Link("task", "4700"))


def test_a_claim_whose_worker_has_published_nothing_is_in_a_batch():
    assert verdict(processing(), facts(worker(current_task_id=None))) is Verdict.IN_BATCH


def test_a_running_task_that_was_asked_to_end_is_cancelling():
    asked = processing(cancel_requested_at=NOW - timedelta(seconds=4))
    found = verdicts.decide(asked, facts(worker(current_task_id=4711)))
    assert found.verdict is Verdict.CANCELLING
    assert "4 seconds ago" in found.sentence


def test_a_worker_without_heartbeat_is_silent_while_recovery_may_not_act():
    silent = worker(heartbeat_age_seconds=40.0, epoch_age_seconds=10.0)
    found = verdicts.decide(processing(), facts(silent))
    assert found.verdict is Verdict.WORKER_SILENT
    assert "not been heard for 40 seconds; recovery waits 20 seconds" in found.sentence


def test_a_worker_that_a_restart_of_the_database_disconnected_is_not_called_dead():
    found = verdicts.decide(processing(), facts(worker(held=False, presence_epoch="0/0", epoch_age_seconds=4.0)))
    assert found.verdict is Verdict.WORKER_SILENT
    assert "The database restarted" in found.sentence


@pytest.mark.parametrize(
    ("state", "evidence"),
    [
        (worker(held=False, missing_seconds=61.0), "is gone, since 61 seconds"),
        (worker(held=False, missing_seconds=None), "is gone, since less than a second"),
        (worker(heartbeat_age_seconds=45.0), "has not been heard for 45 seconds, longer than its lease"),
        (worker(stopped_at=NOW - timedelta(minutes=3), stop_reason="convicted"), "ended 3 minutes ago (convicted)"),
        (worker(registered=False), "is registered nowhere"),
    ],
)
def test_a_dead_worker_says_how_that_is_known(state, evidence):
    found = verdicts.decide(processing(), facts(state))
    assert found.verdict is Verdict.WORKER_DEAD
    assert evidence in found.sentence
    assert "No live worker is there to take it back" in found.sentence


def test_a_worker_that_nobody_knows_is_dead():
    assert verdict(processing(claimed_by="w0"), facts()) is Verdict.WORKER_DEAD


def test_death_comes_before_a_request_to_cancel():
    asked = processing(cancel_requested_at=NOW)
    assert verdict(asked, facts(worker(registered=False))) is Verdict.WORKER_DEAD


def test_a_living_worker_takes_back_what_a_dead_one_held():
    found = verdicts.decide(processing(), facts(worker(registered=False), worker(id="w2")))
    assert "next sweep" in found.sentence


def test_a_queue_that_asks_says_that_a_person_decides():
    queue = Queue(name="payouts", recovery="ask")
    found = verdicts.decide(processing(), facts(worker(registered=False), worker(id="w2"), queues={"payouts": queue}))
    assert "asks a person" in found.sentence


def test_finished_tasks_tell_how_they_ended():
    times = {"started_at": NOW - timedelta(seconds=9), "finished_at": NOW}
    done = verdicts.decide(task(status="COMPLETED", finished_by="w7f", **times), facts())
    failed = verdicts.decide(task(status="FAILED", attempt=5), facts(errors={4711: "builtins.ValueError"}))
    cancelled = verdicts.decide(task(status="CANCELLED"), facts(cancellers={4711: "anna"}))
    assert (done.verdict, done.sentence) == (Verdict.COMPLETED, "Completed by worker w7f. It ran for 9 seconds.")
    assert (failed.verdict, failed.sentence) == (Verdict.FAILED, "Failed after 5 attempts: builtins.ValueError")
    assert (cancelled.verdict, cancelled.sentence) == (Verdict.CANCELLED, "Cancelled by anna.")


def judge(subject: Task) -> Finding:
    return verdicts.judge([subject])[subject.pk]


@pytest.mark.django_db
def test_the_place_in_the_queue_is_the_order_of_the_claim():
    Worker.objects.create(id="w7f", hostname="host", pid=1)
    last, first, second = rows.ready(), rows.ready(priority=5), rows.ready(priority=5)
    rows.ready(priority=9, run_after="2999-01-01T00:00Z")
    rows.ready(queue_name="mail")
    positions = verdicts.gather([last, first, second]).positions
    assert positions == {first.pk: 1, second.pk: 2, last.pk: 3}


@pytest.mark.django_db
def test_the_running_task_holds_the_key_even_when_an_earlier_one_was_committed_later():
    late, running, other = (rows.ready(ordering_key="anna") for _ in range(3))
    Task.objects.filter(pk=running.pk).update(status="PROCESSING", claimed_by="w7f", attempt=1)
    assert verdicts.gather([late]).keys == {"anna": KeyState(running.pk, 2)}
    assert other.pk > running.pk


@pytest.mark.django_db
def test_a_retry_that_waits_holds_its_key_and_a_failed_task_does_not():
    rows.failed(ordering_key="anna")
    waiting, behind = rows.ready(ordering_key="anna", run_after="2999-01-01T00:00Z"), rows.ready(ordering_key="anna")
    assert verdicts.gather([behind]).keys == {"anna": KeyState(waiting.pk, 1)}


@pytest.mark.django_db
def test_the_last_exception_and_the_last_canceller_are_told():
    failed, cancelled = rows.failed(), rows.ready()
    for name in ("builtins.KeyError", "builtins.ValueError"):
        Attempt.objects.create(task=failed, number=1, worker_id="w", outcome="failed", exception_class=name)
    actions.cancel([cancelled.pk], Who("anna", "page"))
    cancelled.refresh_from_db()
    assert "builtins.ValueError" in judge(failed).sentence
    assert judge(cancelled).sentence == "Cancelled by anna."


@pytest.mark.django_db(transaction=True)
def test_a_row_that_another_session_holds_is_told_from_one_that_is_free():
    with rows.living_worker(task_paths=[rows.NOTHING]), session("psql") as other:
        locked, free = rows.ready(), rows.ready()
        other.execute(f"SELECT FROM tasks_task WHERE id = {locked.pk} FOR UPDATE")
        pid = other.info.backend_pid
        found = verdicts.judge([locked, free])
    assert (found[locked.pk].verdict, found[free.pk].verdict) == (Verdict.ROW_LOCKED, Verdict.READY)
    assert f"pid {pid} (psql)" in found[locked.pk].sentence


@pytest.mark.django_db(transaction=True)
def test_a_worker_whose_session_ended_is_dead_and_another_runs():
    with rows.living_worker() as alive:
        kept, lost = rows.processing(alive), rows.processing(rows.just_died_worker())
        Worker.objects.filter(pk=alive).update(current_task_id=kept.pk)
        found = verdicts.judge([kept, lost])
    assert (found[kept.pk].verdict, found[lost.pk].verdict) == (Verdict.RUNNING, Verdict.WORKER_DEAD)


@pytest.mark.django_db
def test_the_number_of_statements_does_not_grow_with_the_page():
    def statements(number: int) -> int:
        page = [
            make(ordering_key=f"key-{number}")
            for number in range(number)
            for make in (rows.ready, rows.failed, rows.cancelled, rows.completed)
        ]
        page += [rows.processing(f"w{number}") for number in range(number)] + [rows.ready() for _ in range(number)]
        with CaptureQueriesContext(connection) as queries:
            verdicts.judge(page)
        return len(queries)

    assert statements(1) == statements(10) <= 12
