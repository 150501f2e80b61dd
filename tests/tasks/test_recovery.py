"""Taking back what dead workers held: who is convicted, in how many looks, and what becomes of the tasks."""

import contextlib
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks import claims, presence, recovery, transitions
from tasks.models import Attempt, Epoch, Queue, Task, Worker
from tests.sessions import session
from tests.tasks import rows
from tests.tasks.claiming import claim, ids
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
LONG_AGO = timezone.now() - timedelta(minutes=5)


@contextlib.contextmanager
def present(worker_id="w1", **columns):
    """A worker that holds its presence and has confirmed it; afterwards its session is gone."""
    Worker.objects.create(id=worker_id, hostname="host", pid=1, **columns)
    with session(autocommit=True) as conn:
        assert presence.take(conn, worker_id)
        assert presence.confirm(connection, worker_id)
        yield conn
    wait_until(lambda: not presence.states([worker_id])[worker_id].held)


def died(worker_id="w1", **columns) -> str:
    """A worker that nobody has missed yet."""
    with present(worker_id, **columns):
        return worker_id


def sweep():
    return recovery.sweep(connection)


def look_again_later():
    """As if the first look at the missing had been long enough ago."""
    past = timezone.now() - timedelta(seconds=presence.SECOND_LOOK_SECONDS)
    Worker.objects.filter(missing_since__isnull=False).update(missing_since=past)


def lives() -> dict[str, bool]:
    """Which workers have not been convicted."""
    return {worker.id: worker.stopped_at is None for worker in Worker.objects.all()}


class TestTwoLooks:
    def test_the_first_look_only_suspects(self):
        task = rows.processing(died())
        swept = sweep()
        assert (swept.suspects, swept.dead, swept.rows) == (["w1"], [], [])
        task.refresh_from_db()
        assert (task.status, lives()) == ("PROCESSING", {"w1": True})

    def test_a_second_look_too_soon_as_well(self):
        rows.processing(died())
        sweep()
        first_look = Worker.objects.get().missing_since
        swept = sweep()
        assert (swept.suspects, swept.rows, lives()) == (["w1"], [], {"w1": True})
        assert Worker.objects.get().missing_since == first_look, "many sweepers would put the second look off for ever"

    def test_the_second_look_convicts_and_takes_back(self):
        task = rows.processing(died())
        sweep()
        look_again_later()
        swept = sweep()
        assert (swept.dead, swept.requeued) == (["w1"], [task.pk])
        worker = Worker.objects.get()
        assert (worker.stopped_at is not None, worker.stop_reason) == (True, "convicted")

    def test_who_is_back_between_the_looks_is_acquitted(self):
        task = rows.processing(died())
        sweep()
        look_again_later()
        with session(autocommit=True) as conn:
            presence.take(conn, "w1")
            swept = sweep()
            assert (swept.suspects, swept.dead, swept.rows) == ([], [], [])
            assert Worker.objects.get().missing_since is None
        task.refresh_from_db()
        assert (task.status, lives()) == ("PROCESSING", {"w1": True})

    def test_who_was_acquitted_gets_two_looks_again(self):
        rows.processing(died())
        sweep()
        look_again_later()
        with session(autocommit=True) as conn:
            presence.take(conn, "w1")
            sweep()
        wait_until(lambda: not presence.states(["w1"])["w1"].held)
        assert sweep().suspects == ["w1"]

    def test_recover_looks_twice_by_itself(self):
        task = rows.processing(died())
        assert recovery.recover().requeued == [task.pk]


class TestWhoIsConvicted:
    def test_a_present_worker_is_left_alone(self):
        with present():
            rows.processing("w1")
            for _ in range(2):
                assert sweep().rows == []
                look_again_later()
        assert lives() == {"w1": True}

    def test_one_that_is_silent_for_longer_than_its_lease_is_though_it_is_present(self):
        with present(lease_seconds=60):
            task = rows.processing("w1")
            Worker.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=50))
            assert sweep().rows == []
            Worker.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=70))
            assert sweep().requeued == [task.pk]

    def test_a_holder_that_never_registered_is_at_once(self):
        task = rows.processing("nobody knows it")
        assert sweep().requeued == [task.pk]

    def test_so_is_one_that_stopped_and_left_something(self):
        task = rows.processing(rows.dead_worker())
        assert sweep().requeued == [task.pk]

    def test_a_heartbeat_since_the_look_acquits(self):
        with present():
            pass
        Worker.objects.update(missing_since=LONG_AGO)
        seen = presence.states(connection=connection)
        presence.beat(connection, ["w1"])
        assert recovery._judge(connection, seen.values()).dead == []
        assert lives() == {"w1": True}

    def test_so_does_presence_confirmed_since_the_look(self):
        died()
        Worker.objects.update(missing_since=LONG_AGO)
        heartbeat_at = Worker.objects.get().heartbeat_at
        seen = presence.states(connection=connection)
        with session(autocommit=True) as conn:
            presence.take(conn, "w1")
            presence.confirm(connection, "w1")
            Worker.objects.update(heartbeat_at=heartbeat_at)
            assert recovery._judge(connection, seen.values()).dead == []
        assert lives() == {"w1": True}


class TestAfterARestart:
    """Every presence is lost at once: only the lease convicts, and not before one lease has passed."""

    @pytest.fixture
    def restarted(self):
        rows.processing(died(lease_seconds=20))
        Worker.objects.update(presence_epoch="before", heartbeat_at=LONG_AGO)
        Epoch.objects.update(token="before", first_seen_at=LONG_AGO)

    def age_epoch(self, seconds):
        Epoch.objects.update(first_seen_at=timezone.now() - timedelta(seconds=seconds))

    @pytest.mark.usefixtures("restarted")
    def test_nobody_is_suspected_or_convicted(self):
        for _ in range(3):
            swept = sweep()
            assert (swept.suspects, swept.dead, swept.rows) == ([], [], [])
            look_again_later()
        assert [state.id for state in swept.waiting] == ["w1"]
        assert recovery.recover().rows == []

    @pytest.mark.usefixtures("restarted")
    def test_the_grace_is_one_lease_of_the_worker(self):
        sweep()
        self.age_epoch(19)
        assert sweep().rows == []
        self.age_epoch(21)
        assert len(sweep().requeued) == 1

    @pytest.mark.usefixtures("restarted")
    def test_who_keeps_beating_is_never_convicted_by_its_absence(self):
        sweep()
        self.age_epoch(1000)
        presence.beat(connection, ["w1"])
        for _ in range(2):
            assert sweep().rows == []
            look_again_later()

    @pytest.mark.usefixtures("restarted")
    def test_a_worker_of_the_new_epoch_is_convicted_as_ever(self):
        sweep()
        task = rows.processing(died("w2"))
        sweep()
        look_again_later()
        swept = sweep()
        assert (swept.dead, swept.requeued) == (["w2"], [task.pk])

    @pytest.mark.usefixtures("restarted")
    def test_who_came_back_is_of_the_new_epoch(self):
        sweep()
        with session(autocommit=True) as conn:
            presence.take(conn, "w1")
            presence.confirm(connection, "w1")
        wait_until(lambda: not presence.states(["w1"])["w1"].held)
        assert sweep().suspects == ["w1"]


class TestWhatBecomesOfTheTasks:
    def test_with_attempts_left_it_is_ready_and_the_attempt_was_abandoned(self):
        task = rows.processing(rows.dead_worker("w1"), attempt=1, max_attempts=2)
        sweep()
        version, started_at = task.version, task.started_at
        task.refresh_from_db()
        assert (task.status, task.version, task.attempt, task.claimed_by) == ("READY", version + 1, 1, None)
        assert task.finished_at is None
        attempt = Attempt.objects.get()
        assert (attempt.task_id, attempt.number, attempt.worker_id) == (task.pk, 1, "w1")
        assert (attempt.outcome, attempt.exception_class) == ("abandoned", "tasks.exceptions.Abandoned")
        assert attempt.started_at == started_at

    def test_out_of_attempts_it_has_failed_with_an_abandoned_attempt(self):
        task = rows.processing(rows.dead_worker(), attempt=3, max_attempts=3)
        assert sweep().failed == [task.pk]
        task.refresh_from_db()
        assert (task.status, task.claimed_by, task.finished_at is not None) == ("FAILED", None, True)
        assert (Attempt.objects.get().outcome, Attempt.objects.get().number) == ("abandoned", 3)

    def test_a_cancel_that_was_asked_for_is_done(self):
        task = rows.processing(rows.dead_worker(), cancel_requested_at=timezone.now())
        assert sweep().cancelled == [task.pk]
        task.refresh_from_db()
        assert (task.status, task.finished_at is not None) == ("CANCELLED", True)

    @pytest.mark.parametrize(("attempt", "seconds"), [(1, 0), (2, 1), (3, 2), (4, 4), (8, 60), (32_000, 60)])
    def test_the_first_time_it_is_due_at_once_and_then_ever_later(self, attempt, seconds):
        task = rows.processing(rows.dead_worker(), attempt=attempt, max_attempts=32_767)
        sweep()
        task.refresh_from_db()
        assert (task.run_after - timezone.now()).total_seconds() == pytest.approx(seconds, abs=0.9)

    def test_a_task_that_kills_its_workers_ends_failed(self):
        task = rows.ready(max_attempts=3)
        for worker_id in ("a", "b", "c"):
            Task.objects.update(run_after=LONG_AGO)
            assert ids(claim(worker_id=rows.dead_worker(worker_id))) == [task.pk]
            sweep()
        task.refresh_from_db()
        assert (task.status, task.attempt, Attempt.objects.count()) == ("FAILED", 3, 3)
        assert claim() == []

    def test_what_living_workers_hold_stays(self):
        lost = rows.processing(rows.dead_worker())
        with present("w1"):
            kept = rows.processing("w1")
            assert sweep().requeued == [lost.pk]
            kept.refresh_from_db()
            assert (kept.status, kept.version) == ("PROCESSING", 2)

    def test_the_rows_tell_what_changed(self):
        task = rows.processing(rows.dead_worker("w1"), queue_name="q", version=7)
        [row] = sweep().rows
        assert row == {
            "id": task.pk,
            "status": "READY",
            "queue_name": "q",
            "claimed_by": "w1",
            "version_before": 7,
            "version_after": 8,
        }


class TestQueuesThatAskAPerson:
    @pytest.fixture
    def asked(self):
        Queue.objects.create(name="payouts", recovery="ask")
        return rows.processing(rows.dead_worker(), queue_name="payouts")

    def test_a_sweep_leaves_them(self, asked):
        other = rows.processing("w-dead")
        assert sweep().requeued == [other.pk]

    def test_so_does_the_supervisor_whose_child_died(self, asked):
        assert recovery.take_back(connection, ["w-dead"]).rows == []

    def test_a_person_takes_them_back(self, asked):
        assert recovery.recover(include_ask=True).requeued == [asked.pk]

    def test_they_do_not_hide_the_others(self, asked):
        for _ in range(5):
            rows.processing("w-dead", queue_name="payouts")
        other = rows.processing("w-dead")
        assert recovery.sweep(connection, limit=1).requeued == [other.pk]


class TestRecover:
    def test_in_chunks_until_nothing_is_left(self, monkeypatch):
        monkeypatch.setattr(recovery, "CHUNK", 3)
        worker = rows.dead_worker()
        tasks = ids(rows.processing(worker) for _ in range(8))
        assert recovery.recover().requeued == tasks

    @pytest.mark.parametrize("limit", [0, 1, 3, 7])
    def test_a_limit_counts_over_all_chunks(self, monkeypatch, limit):
        monkeypatch.setattr(recovery, "CHUNK", 2)
        worker = rows.dead_worker()
        for _ in range(7):
            rows.processing(worker)
        assert len(recovery.recover(limit=limit).rows) == Task.objects.ready().count() == limit

    def test_only_the_tasks_named(self):
        worker = rows.dead_worker()
        chosen, other = rows.processing(worker), rows.processing(worker)
        assert recovery.recover(task_ids=[chosen.pk]).requeued == [chosen.pk]
        other.refresh_from_db()
        assert other.status == "PROCESSING"

    def test_a_dry_run_tells_the_same_and_changes_nothing(self):
        tasks = ids([rows.processing(died()), rows.processing(rows.dead_worker("w2"))])
        before = list(Task.objects.order_by("id").values()), list(Worker.objects.order_by("id").values())
        assert recovery.recover(dry_run=True).requeued == tasks
        assert (list(Task.objects.order_by("id").values()), list(Worker.objects.order_by("id").values())) == before
        assert not Attempt.objects.exists()
        assert recovery.recover().requeued == tasks

    def test_the_record_is_made_with_the_rows(self):
        task = rows.processing(rows.dead_worker())
        recorded = []
        recovery.recover(record=lambda conn, taken: recorded.extend(taken))
        assert [row["id"] for row in recorded] == [task.pk]


class TestTakeBack:
    """The supervisor has seen its child die, so there is nothing to look at twice."""

    def test_at_once(self):
        with present():
            task = rows.processing("w1")
            assert recovery.take_back(connection, ["w1"], reason="crashed").requeued == [task.pk]
        assert (lives(), Worker.objects.get().stop_reason) == ({"w1": False}, "crashed")

    def test_nobody_elses(self):
        rows.dead_worker("w2")
        rows.processing("w2")
        assert recovery.take_back(connection, ["w1"]).rows == []


def test_a_late_worker_cannot_complete_what_was_recovered():
    rows.ready()
    [claimed] = claim(worker_id=died())
    recovery.recover()
    with pytest.raises(transitions.LostClaim):
        transitions.complete(connection, "w1", claimed)
    assert ids(claims.claim(connection, claims.Claimer("w2"), 1)) == [claimed.id]
