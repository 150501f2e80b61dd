"""The verdict on a task: the decision on facts that are given."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tasks import diagnosis
from tasks.diagnosis import Facts, KeyState, Link, Verdict, WorkerSession
from tasks.diagnosis.decision import SENTENCES
from tasks.locking.rowlocks import Hold, Locker, RowLock
from tasks.models import Queue, Task
from tasks.queue.presence import WorkerState

NOW = datetime(2026, 11, 20, 3, 12, tzinfo=UTC)
PATH = "app.tasks.pay"
LOCK = RowLock(Hold.HELD, (Locker(812, "psql", 240.0),))


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
    return diagnosis.decide(subject, known).verdict


def test_a_due_task_of_a_served_queue_is_ready_at_its_place():
    found = diagnosis.decide(task(), facts(positions={4711: 42}))
    assert (found.verdict, found.sentence) == (Verdict.READY, "Due; number 42 in its queue.")


def test_a_task_behind_very_many_is_not_counted():
    assert diagnosis.decide(task(), facts()).sentence == "Due; more than 1000 tasks go before it."


def test_a_task_whose_time_has_not_come_waits():
    found = diagnosis.decide(task(run_after=NOW + timedelta(minutes=5), attempt=2), facts())
    assert found.verdict is Verdict.WAITING
    assert found.sentence == "Attempt 3 of 5 waits until 2026-11-20 03:17:00 UTC, in 5 min."


def test_a_task_waits_for_the_holder_of_its_key():
    found = diagnosis.decide(task(ordering_key="anna"), facts(keys={"anna": KeyState(88, 3)}))
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
    found = diagnosis.decide(task(ordering_key="anna"), facts(keys={"anna": KeyState(4711, waiting)}))
    assert found.verdict is Verdict.READY
    assert found.sentence.endswith(text)


def test_a_holder_that_waits_for_its_retry_tells_it_too():
    waiting = task(ordering_key="anna", run_after=NOW + timedelta(minutes=5))
    found = diagnosis.decide(waiting, facts(keys={"anna": KeyState(4711, 2)}))
    assert found.verdict is Verdict.WAITING
    assert found.sentence.endswith("2 tasks wait behind it.")


def test_a_paused_queue_says_by_whom_and_since_when():
    queue = Queue(name="payouts", paused=True, paused_by="anna", paused_at=NOW - timedelta(hours=3))
    found = diagnosis.decide(task(), facts(queues={"payouts": queue}))
    assert (found.verdict, found.command) == (Verdict.PAUSED, "python manage.py resume_queue payouts")
    assert found.sentence == "The queue payouts was paused by anna, 3 h ago."


@pytest.mark.parametrize(
    "other",
    [worker(queues=["mail"]), worker(held=False, missing_seconds=1.0), worker(heartbeat_age_seconds=31.0)],
    ids=["of another queue", "dead", "silent"],
)
def test_a_queue_that_no_live_worker_serves_says_how_to_start_one(other):
    found = diagnosis.decide(task(queue_name="pay outs"), facts(other))
    assert (found.verdict, found.command) == (
        Verdict.NO_WORKER,
        "python manage.py run_worker --queue 'pay outs'",
    )


def test_a_function_that_no_worker_of_the_queue_has_is_unknown():
    mine, other = worker(task_paths=["app.tasks.other"]), worker(id="w2", queues=["mail"])
    found = diagnosis.decide(task(), facts(mine, other))
    assert found.verdict is Verdict.UNKNOWN_TASK
    assert PATH in found.sentence


def test_one_worker_that_knows_the_function_is_enough():
    assert verdict(task(), facts(worker(task_paths=[]), worker(id="w2"))) is Verdict.READY


def test_a_locked_row_names_its_holder():
    found = diagnosis.decide(task(), facts(locks={4711: LOCK}))
    assert found.verdict is Verdict.ROW_LOCKED
    assert "Held by pid 812 (psql), in a transaction open for 4 min" in found.sentence


def test_a_row_whose_holder_is_uncertain_is_locked():
    found = diagnosis.decide(task(), facts(locks={4711: RowLock(Hold.UNCERTAIN)}))
    assert found.verdict is Verdict.ROW_LOCKED
    assert "which one is uncertain" in found.sentence


def test_a_row_that_is_only_touched_is_ready():
    touched = RowLock(Hold.TOUCHED, LOCK.lockers)
    assert verdict(task(), facts(locks={4711: touched})) is Verdict.READY


def test_further_reasons_stand_beside_the_first():
    queue = Queue(name="payouts", paused=True)
    found = diagnosis.decide(task(), facts(worker(queues=["mail"]), queues={"payouts": queue}, locks={4711: LOCK}))
    assert [found.verdict, *(other.verdict for other in found.also)] == [
        Verdict.PAUSED,
        Verdict.NO_WORKER,
        Verdict.ROW_LOCKED,
    ]


def test_a_task_its_worker_is_on_runs():
    since = worker(current_task_id=4711, current_since=NOW - timedelta(seconds=7))
    waits = WorkerSession(902, "Lock", "transactionid", (812,))
    found = diagnosis.decide(processing(), facts(since, sessions={"w7f": waits}))
    assert (found.verdict, found.links) == (Verdict.RUNNING, (Link("worker", "w7f"), Link("session", "902")))
    assert found.sentence == (
        "Worker w7f has been on it for 7 s. Its session, pid 902, waits for Lock:transactionid, blocked by pid 812."
    )


def test_each_of_several_tasks_that_a_worker_is_on_runs():
    """No session is named: it may be that of another task."""
    several = worker(current_task_id=4700, current_since=NOW - timedelta(seconds=90), running_ids=[4700, 4711])
    session = WorkerSession(902, "Lock", "transactionid", (812,))
    started = NOW - timedelta(seconds=7)
    found = diagnosis.decide(processing(started_at=started), facts(several, sessions={"w7f": session}))
    assert (found.verdict, found.links) == (Verdict.RUNNING, (Link("worker", "w7f"),))
    assert found.sentence == "Worker w7f has been on it for 7 s."
    assert verdict(processing(id=4712), facts(several)) is Verdict.IN_BATCH


def test_a_session_that_waits_for_its_client_is_idle():
    since = worker(current_task_id=4711, current_since=NOW - timedelta(seconds=7))
    session = WorkerSession(902, "Client", "ClientRead")
    found = diagnosis.decide(processing(), facts(since, sessions={"w7f": session}))
    assert found.sentence == "Worker w7f has been on it for 7 s. Its session, pid 902, is idle."
    assert session.waits_for == ""


def test_a_task_behind_another_of_its_batch_names_it():
    found = diagnosis.decide(processing(), facts(worker(current_task_id=4700)))
    assert (found.verdict, found.links[-1]) == (Verdict.IN_BATCH, Link("task", "4700"))


def test_a_claim_whose_worker_has_published_nothing_is_in_a_batch():
    assert verdict(processing(), facts(worker(current_task_id=None))) is Verdict.IN_BATCH


def test_a_running_task_that_was_asked_to_end_is_cancelling():
    asked = processing(cancel_requested_at=NOW - timedelta(seconds=4))
    found = diagnosis.decide(asked, facts(worker(current_task_id=4711)))
    assert found.verdict is Verdict.CANCELLING
    assert "4 s ago" in found.sentence


def test_a_worker_without_heartbeat_is_silent_while_recovery_may_not_act():
    silent = worker(heartbeat_age_seconds=40.0, epoch_age_seconds=10.0)
    found = diagnosis.decide(processing(), facts(silent))
    assert found.verdict is Verdict.WORKER_SILENT
    assert "not been heard for 40 s; recovery waits 20 s" in found.sentence


def test_a_worker_that_a_restart_of_the_database_disconnected_is_not_called_dead():
    found = diagnosis.decide(processing(), facts(worker(held=False, presence_epoch="0/0", epoch_age_seconds=4.0)))
    assert found.verdict is Verdict.WORKER_SILENT
    assert "The database restarted" in found.sentence


@pytest.mark.parametrize(
    ("state", "evidence"),
    [
        (worker(held=False, missing_seconds=61.0), "disconnected at least 61 s ago"),
        (worker(held=False, missing_seconds=None), "disconnected just now"),
        (worker(heartbeat_age_seconds=45.0), "has not been heard for 45 s, longer than its lease"),
        (worker(stopped_at=NOW - timedelta(minutes=3), stop_reason="convicted"), "ended 3 min ago (convicted)"),
        (worker(registered=False), "is registered nowhere"),
    ],
)
def test_a_dead_worker_says_how_that_is_known(state, evidence):
    found = diagnosis.decide(processing(), facts(state))
    assert found.verdict is Verdict.WORKER_DEAD
    assert evidence in found.sentence
    assert "No live worker is there to take it back" in found.sentence


def test_a_worker_that_nobody_knows_is_dead():
    assert verdict(processing(claimed_by="w0"), facts()) is Verdict.WORKER_DEAD


def test_death_comes_before_a_request_to_cancel():
    asked = processing(cancel_requested_at=NOW)
    assert verdict(asked, facts(worker(registered=False))) is Verdict.WORKER_DEAD


def test_a_living_worker_takes_back_what_a_dead_one_held():
    found = diagnosis.decide(processing(), facts(worker(registered=False), worker(id="w2")))
    assert "next sweep" in found.sentence


def test_a_queue_that_asks_says_that_a_person_decides():
    queue = Queue(name="payouts", recovery="ask")
    found = diagnosis.decide(processing(), facts(worker(registered=False), worker(id="w2"), queues={"payouts": queue}))
    assert "is manual" in found.sentence


def test_finished_tasks_tell_how_they_ended():
    times = {"started_at": NOW - timedelta(seconds=9), "finished_at": NOW}
    done = diagnosis.decide(task(status="COMPLETED", finished_by="w7f", **times), facts())
    failed = diagnosis.decide(task(status="FAILED", attempt=5), facts(errors={4711: "builtins.ValueError"}))
    cancelled = diagnosis.decide(task(status="CANCELLED"), facts(cancellers={4711: "anna"}))
    assert (done.verdict, done.sentence) == (Verdict.COMPLETED, "Completed by worker w7f. It ran for 9 s.")
    assert (failed.verdict, failed.sentence) == (Verdict.FAILED, "Failed after 5 attempts: builtins.ValueError")
    assert (cancelled.verdict, cancelled.sentence) == (Verdict.CANCELLED, "Cancelled by anna.")


def test_every_verdict_has_words():
    assert set(SENTENCES) == set(Verdict)
