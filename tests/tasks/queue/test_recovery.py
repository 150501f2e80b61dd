"""Taking back what dead workers held: who is convicted, and in how many looks."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import Epoch, Worker
from tasks.queue import presence, recovery
from tasks.queue.set_aside import Writes
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
LONG_AGO = timezone.now() - timedelta(minutes=5)


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
        task = rows.processing(rows.just_died_worker("w1"))
        swept = sweep()
        assert (swept.suspects, swept.dead, swept.rows) == (["w1"], [], [])
        task.refresh_from_db()
        assert (task.status, lives()) == ("PROCESSING", {"w1": True})

    def test_a_second_look_too_soon_as_well(self):
        rows.processing(rows.just_died_worker("w1"))
        sweep()
        first_look = Worker.objects.get().missing_since
        swept = sweep()
        assert (swept.suspects, swept.rows, lives()) == (["w1"], [], {"w1": True})
        assert Worker.objects.get().missing_since == first_look, "many sweepers would put the second look off for ever"

    def test_the_second_look_convicts_and_takes_back(self):
        task = rows.processing(rows.just_died_worker("w1"))
        sweep()
        look_again_later()
        swept = sweep()
        assert (swept.dead, swept.requeued) == (["w1"], [task.pk])
        worker = Worker.objects.get()
        assert (worker.stopped_at is not None, worker.stop_reason) == (True, "convicted")

    def test_who_is_back_between_the_looks_is_acquitted(self):
        task = rows.processing(rows.just_died_worker("w1"))
        sweep()
        look_again_later()
        with session(autocommit=True) as conn:
            rows.take_presence(conn, "w1")
            swept = sweep()
            assert (swept.suspects, swept.dead, swept.rows) == ([], [], [])
            assert Worker.objects.get().missing_since is None
        task.refresh_from_db()
        assert (task.status, lives()) == ("PROCESSING", {"w1": True})

    def test_who_was_acquitted_gets_two_looks_again(self):
        rows.processing(rows.just_died_worker("w1"))
        sweep()
        look_again_later()
        with session(autocommit=True) as conn:
            rows.take_presence(conn, "w1")
            sweep()
        wait_until(lambda: not presence.states(["w1"])["w1"].held)
        assert sweep().suspects == ["w1"]

    def test_recover_looks_twice_by_itself(self):
        task = rows.processing(rows.just_died_worker("w1"))
        assert recovery.recover().requeued == [task.pk]


class TestWhoIsConvicted:
    def test_a_present_worker_is_left_alone(self):
        with rows.living_worker("w1"):
            rows.processing("w1")
            for _ in range(2):
                assert sweep().rows == []
                look_again_later()
        assert lives() == {"w1": True}

    def test_one_that_is_silent_for_longer_than_its_lease_is_though_it_is_present(self):
        with rows.living_worker("w1", lease_seconds=60):
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
        rows.just_died_worker("w1")
        Worker.objects.update(missing_since=LONG_AGO)
        seen = presence.states(connection=connection)
        assert seen["w1"].is_dead
        presence.beat(connection, ["w1"])
        assert recovery._judge(Writes(connection), list(seen.values())).dead == []
        assert lives() == {"w1": True}

    def test_so_does_presence_confirmed_since_the_look(self):
        rows.just_died_worker("w1")
        Worker.objects.update(missing_since=LONG_AGO)
        heartbeat_at = Worker.objects.get().heartbeat_at
        seen = presence.states(connection=connection)
        with session(autocommit=True) as conn:
            rows.take_presence(conn, "w1")
            presence.confirm(connection, "w1")
            Worker.objects.update(heartbeat_at=heartbeat_at)
            assert recovery._judge(Writes(connection), list(seen.values())).dead == []
        assert lives() == {"w1": True}


class TestAfterARestart:
    """Every presence is lost at once: only the lease convicts, and not before one lease has passed."""

    @pytest.fixture
    def restarted(self):
        rows.processing(rows.just_died_worker("w1", lease_seconds=20))
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
        task = rows.processing(rows.just_died_worker("w2"))
        sweep()
        look_again_later()
        swept = sweep()
        assert (swept.dead, swept.requeued) == (["w2"], [task.pk])

    @pytest.mark.usefixtures("restarted")
    def test_who_came_back_is_of_the_new_epoch(self):
        sweep()
        with session(autocommit=True) as conn:
            rows.take_presence(conn, "w1")
            presence.confirm(connection, "w1")
        wait_until(lambda: not presence.states(["w1"])["w1"].held)
        assert sweep().suspects == ["w1"]
