"""A worker's sign of life: the lock that ends with its session, the lease behind it, and the one decision on both."""

import contextlib
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import Epoch, Worker
from tasks.queue import presence
from tasks.queue.presence import Life, WorkerState
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
NOW, EARLIER = "postmaster 2/stats 2", "postmaster 1/stats 1"
LATER = presence.SECOND_LOOK_SECONDS


def seen(**columns) -> WorkerState:
    """A worker that holds its presence and beat a moment ago, in an epoch that began long ago; but for `columns`."""
    facts = {
        "registered": True,
        "held": True,
        "presence_epoch": NOW,
        "heartbeat_age_seconds": 1.0,
        "missing_seconds": None,
        "epoch_age_seconds": 1000.0,
    }
    return WorkerState(id="w1", epoch=NOW, lease_seconds=30.0, **{**facts, **columns})


GONE = {"held": False}
SILENT = {"heartbeat_age_seconds": 31.0}
BEFORE = {"presence_epoch": EARLIER}
JUST_RESTARTED = {"epoch_age_seconds": 2.0}


@pytest.mark.parametrize(
    ("facts", "life"),
    [
        ({}, Life.ALIVE),
        ({"registered": False}, Life.DEAD),
        ({"stopped_at": datetime(2026, 1, 2, tzinfo=UTC)}, Life.DEAD),
        # Presence: one look proves nothing, two do when enough time lies between them.
        (GONE, Life.MISSING),
        (GONE | {"missing_seconds": LATER - 0.01}, Life.MISSING),
        (GONE | {"missing_seconds": LATER}, Life.DEAD),
        ({"missing_seconds": LATER}, Life.ALIVE),
        (GONE | JUST_RESTARTED | {"missing_seconds": LATER}, Life.DEAD),
        # The lease: it convicts whoever holds presence, but for the grace after a restart.
        (SILENT, Life.DEAD),
        ({"heartbeat_age_seconds": 29.0}, Life.ALIVE),
        (SILENT | JUST_RESTARTED, Life.SILENT),
        (SILENT | {"epoch_age_seconds": 30.0}, Life.DEAD),
        ({"heartbeat_age_seconds": 6.0, "epoch_age_seconds": 6.0}, Life.ALIVE),
        # Presence that was lost with an earlier epoch: its absence proves nothing, however often one looks.
        (GONE | BEFORE, Life.RESTARTED),
        (GONE | BEFORE | {"missing_seconds": 500.0}, Life.RESTARTED),
        (GONE | BEFORE | SILENT | JUST_RESTARTED, Life.RESTARTED),
        (GONE | BEFORE | SILENT, Life.DEAD),
        (BEFORE, Life.ALIVE),
        (BEFORE | SILENT, Life.DEAD),
        # Presence never taken: registered a moment ago, or behind a pooling proxy.
        (GONE | {"presence_epoch": None}, Life.ALIVE),
        (GONE | {"presence_epoch": None} | SILENT, Life.DEAD),
    ],
    ids=str,
)
def test_one_decision_on_life_and_death(facts, life):
    assert seen(**facts).life is life


def register(worker_id="w1", **columns) -> str:
    return Worker.objects.create(id=worker_id, hostname="host", pid=1, **columns).pk


def state(worker_id="w1") -> WorkerState:
    return presence.states([worker_id])[worker_id]


def is_gone(worker_id="w1") -> bool:
    return not state(worker_id).held


@contextlib.contextmanager
def held(worker_id="w1"):
    """A session that holds the presence of the worker."""
    with session(autocommit=True) as conn:
        assert presence.take(conn, worker_id)
        yield conn
    wait_until(lambda: is_gone(worker_id))


class TestTheLock:
    def test_it_lasts_as_long_as_the_session(self):
        register()
        assert not state().held
        with held():
            assert state().held
        assert not state().held

    def test_f08_it_is_given_to_one_at_a_time(self):
        with held(), session(autocommit=True) as other:
            assert not presence.take(other, "w1")
            assert presence.take(other, "w2")

    def test_the_same_id_may_take_it_again_after_its_session_was_lost(self):
        register()
        with held():
            pass
        with held():
            assert state().held

    def test_a_key_that_is_negative_is_seen(self):
        """Half of all ids; `pg_locks` shows their keys as unsigned."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT min('w' || n) FROM generate_series(1, 99) AS n WHERE hashtext('w' || n) < 0")
            worker_id = cursor.fetchone()[0]
            cursor.execute("SELECT min('w' || n) FROM generate_series(1, 99) AS n WHERE hashtext('w' || n) > 0")
            other = cursor.fetchone()[0]
        with held(worker_id):
            assert state(worker_id).held
            assert not state(other).held

    def test_another_schema_is_another_world(self):
        """The lab's workers are nobody's peers."""
        with held(), session() as lab:
            lab.execute("CREATE SCHEMA lab_1")
            lab.execute("SET search_path = lab_1")
            assert presence.take(lab, "w1")
            assert presence.take(lab, "w2")
            assert not state("w2").held

    def test_the_key_of_a_schema_may_be_negative_too(self):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT min(n) FROM generate_series(1, 99) AS n WHERE hashtext('rowlock:presence:lab_' || n) < 0"
            )
            name = f"lab_{cursor.fetchone()[0]}"
            cursor.execute(f"CREATE SCHEMA {name}")
            cursor.execute(f"SET LOCAL search_path = {name}, public")
            presence.take(connection, "w1")
            assert state().held
            cursor.execute("SELECT pg_advisory_unlock_all()")

    def test_so_is_another_database(self):
        register()
        known = {**connection.get_connection_params(), "dbname": "postgres"}
        params = {key: known[key] for key in ("dbname", "host", "port", "user", "password") if key in known}
        with psycopg.connect(**params, autocommit=True) as elsewhere:
            assert presence.take(elsewhere, "w1")
            assert not state().held

    def test_a_lock_on_one_number_of_eight_bytes_is_no_presence(self):
        with session(autocommit=True) as other:
            other.execute(
                "SELECT pg_advisory_lock((hashtext('rowlock:presence:' || current_schema())::bigint << 32)"
                " | (hashtext('w1')::bigint & 4294967295))"
            )
            assert not state().held


class TestTheWorkersRow:
    def test_a_session_that_was_lost_is_missed_and_not_condemned(self):
        register()
        with held() as conn:
            presence.confirm(connection, "w1")
            assert state().life is Life.ALIVE
            conn.close()
            wait_until(is_gone)
            assert state().life is Life.MISSING

    def test_presence_that_is_confirmed_ends_the_suspicion(self):
        register(missing_since=timezone.now() - timedelta(minutes=1), presence_epoch="another")
        with held():
            assert presence.confirm(connection, "w1")
            assert state().life is Life.ALIVE
        worker = Worker.objects.get()
        assert (worker.missing_since, worker.presence_epoch) == (None, state().epoch)

    def test_a_worker_that_was_convicted_may_not_come_back(self):
        rows.dead_worker("w1")
        with held():
            assert not presence.confirm(connection, "w1")
            assert state().life is Life.DEAD

    def test_a_heartbeat_renews_the_lease(self):
        register(heartbeat_at=timezone.now() - timedelta(minutes=5))
        assert presence.beat(connection, ["w1"]) == {"w1"}
        assert state().heartbeat_age_seconds == pytest.approx(0, abs=3)

    def test_the_heartbeat_tells_who_was_convicted_or_is_gone(self):
        register("w1")
        rows.dead_worker("w2")
        assert presence.beat(connection, ["w1", "w2", "w3"]) == {"w1"}
        assert state("w2").stop_reason == "convicted"

    def test_the_lease_is_each_workers_own(self, settings):
        settings.ROWLOCK = {"LEASE_SECONDS": 10.0}
        silent_since = timezone.now() - timedelta(seconds=20)
        register("patient", lease_seconds=60, heartbeat_at=silent_since)
        register("default", heartbeat_at=silent_since)
        assert (state("patient").is_lease_over, state("default").is_lease_over) == (False, True)
        assert (state("patient").lease_seconds, state("default").lease_seconds) == (60.0, 10.0)


class TestWhoIsLookedAt:
    def test_every_holder_and_every_worker_that_has_not_stopped(self):
        register("idle")
        register("stopped", stopped_at=timezone.now())
        rows.dead_worker("dead")
        for holder in ("dead", "nobody knows it", "nobody knows it"):
            rows.processing(holder)
        rows.completed()
        assert sorted(presence.known_ids(connection)) == ["dead", "idle", "nobody knows it"]

    def test_a_holder_without_a_row_is_dead(self):
        rows.processing("nobody knows it")
        found = presence.states()
        assert {id: state.life for id, state in found.items()} == {"nobody knows it": Life.DEAD}

    def test_who_was_born_after_the_list_was_made_is_not_judged_by_it(self):
        listed = presence.known_ids(connection)
        register("newborn")
        rows.processing("newborn")
        assert presence.states(listed) == {}

    def test_at_first_nobody(self):
        assert presence.states() == {}


class TestEpoch:
    def test_the_first_one_gives_no_grace(self):
        register(heartbeat_at=timezone.now() - timedelta(minutes=5))
        presence.see_epoch(connection)
        assert state().life is Life.DEAD

    def test_a_new_one_is_dated_when_it_is_first_seen(self):
        Epoch.objects.create(token=EARLIER, first_seen_at=timezone.now() - timedelta(days=1))
        register(heartbeat_at=timezone.now() - timedelta(minutes=5), presence_epoch=EARLIER)
        token = presence.see_epoch(connection)
        epoch = Epoch.objects.get()
        assert epoch.token == token != EARLIER
        assert (timezone.now() - epoch.first_seen_at).total_seconds() == pytest.approx(0, abs=3)
        assert state().life is Life.RESTARTED

    def test_until_somebody_has_seen_it_nobody_is_convicted_by_it(self):
        Epoch.objects.create(token=EARLIER, first_seen_at=timezone.now() - timedelta(days=1))
        register(heartbeat_at=timezone.now() - timedelta(minutes=5), presence_epoch=EARLIER)
        assert state().life is Life.RESTARTED

    def test_one_that_is_known_keeps_its_date(self):
        first_seen_at = timezone.now() - timedelta(days=1)
        presence.see_epoch(connection)
        Epoch.objects.update(first_seen_at=first_seen_at)
        presence.see_epoch(connection)
        assert Epoch.objects.get().first_seen_at == first_seen_at

    @pytest.mark.django_db(transaction=True)
    def test_to_look_at_a_known_one_locks_nothing(self):
        """A sweep is a transaction; workers that come back meanwhile must not wait for its end."""
        presence.see_epoch(connection)
        register()
        with session() as sweeper, session(autocommit=True) as worker:
            presence.see_epoch(sweeper)
            worker.execute("SET lock_timeout = '500ms'")
            assert presence.confirm(worker, "w1")
