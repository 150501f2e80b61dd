"""The SQL functions of named locks, for programs in other languages: the same lock, from psql and from any session."""

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connection

from dashboard.embedded import cluster
from tasks.exceptions import LockHeld, LockLost
from tasks.locking import lock
from tests.commands import database_url
from tests.sessions import session, wait_until_blocked
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
ACQUIRE = "SELECT rowlock_lock_acquire(%s, %s, %s::interval)"
RENEW = "SELECT rowlock_lock_renew(%s, %s, %s, %s::interval)"
RELEASE = "SELECT rowlock_lock_release(%s, %s, %s)"


@pytest.fixture
def other():
    """A session without Django, in autocommit."""
    with session(autocommit=True) as conn:
        yield conn


def value(conn, statement, *params):
    return conn.execute(statement, params).fetchone()[0]


def psql(statement):
    """What the real psql prints for one statement."""
    program = next(cluster.package().glob("pginstall*")) / "bin" / "psql"
    argv = [str(program), "--no-psqlrc", "--tuples-only", "--no-align", "--command", statement, database_url()]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


class TestFromPsql:
    def test_it_takes_the_lock_and_python_is_kept_out(self, name):
        fence = int(psql(f"SELECT rowlock_lock_acquire('{name}', 'a shell script', '30 s')"))
        with pytest.raises(LockHeld) as refusal:
            lock(name, ttl=30).acquire()
        assert (refusal.value.holder.owner, refusal.value.holder.fence) == ("a shell script", fence)
        assert "Unless it renews its lease, the lock is free in" in str(refusal.value)
        assert psql(f"SELECT rowlock_lock_renew('{name}', 'a shell script', {fence}, '1 min')") == "t"
        assert psql(f"SELECT rowlock_lock_release('{name}', 'a shell script', {fence})") == "t"
        with lock(name, ttl=30) as held:
            assert held.fence > fence
            assert psql(f"SELECT rowlock_lock_acquire('{name}', 'a shell script', '30 s') IS NULL") == "t"

    def test_its_release_wakes_python(self, name, monkeypatch):
        monkeypatch.setattr("tasks.locking.named.postgres.RECHECK_SECONDS", 60.0)
        fence = psql(f"SELECT rowlock_lock_acquire('{name}', 'a shell script', '10 min')")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(lock(name, ttl=30, wait=50).acquire)
            wait_until(lambda: psql("SELECT count(*) FROM tasks_lockwaiter") == "1")
            psql(f"SELECT rowlock_lock_release('{name}', 'a shell script', {fence})")
            waiting.result(timeout=10).release()

    def test_its_lease_ends_by_itself(self, name):
        """Nothing but the lease tells whether a script lives: its session ended with the statement."""
        psql(f"SELECT rowlock_lock_acquire('{name}', 'a shell script', '1 s')")
        with pytest.raises(LockHeld):
            lock(name, ttl=30).acquire()
        with lock(name, ttl=30, wait=20):
            pass


class TestOwnership:
    def test_only_owner_and_fence_together_renew_and_release(self, name, other):
        fence = value(other, ACQUIRE, name, "me", "30 s")
        for owner, number in (("you", fence), ("me", fence - 1), ("me", fence + 1)):
            assert value(other, RENEW, name, owner, number, "30 s") is False
            assert value(other, RELEASE, name, owner, number) is False
        assert value(other, ACQUIRE, name, "you", "30 s") is None
        assert value(other, RENEW, name, "me", fence, "30 s") is True
        assert value(other, RELEASE, name, "me", fence) is True
        assert value(other, RELEASE, name, "me", fence) is False

    def test_the_same_owner_does_not_get_it_twice(self, name, other):
        value(other, ACQUIRE, name, "me", "30 s")
        assert value(other, ACQUIRE, name, "me", "30 s") is None

    def test_a_lease_that_is_over_is_neither_renewed_nor_released(self, name, other):
        fence = value(other, ACQUIRE, name, "me", "0.2 s")
        wait_until(lambda: life(other, name) == "expired")
        assert value(other, RENEW, name, "me", fence, "30 s") is False
        assert value(other, RELEASE, name, "me", fence) is False
        assert value(other, ACQUIRE, name, "you", "30 s") > fence
        assert value(other, RENEW, name, "me", fence, "30 s") is False

    def test_fences_grow_though_the_row_was_pruned(self, name, other):
        fence = value(other, ACQUIRE, name, "me", "30 s")
        value(other, RELEASE, name, "me", fence)
        other.execute("DELETE FROM tasks_lock")
        assert value(other, ACQUIRE, name, "me", "30 s") > fence


def life(conn, name):
    return value(conn, "SELECT rowlock_lock_life(lock) FROM tasks_lock AS lock WHERE name = %s", name)


class TestRaces:
    @pytest.mark.parametrize("state", ["new", "free", "expired"])
    def test_of_twenty_at_once_one_gets_it(self, name, other, state):
        if state != "new":
            fence = value(other, ACQUIRE, name, "me", "0.1 s")
            wait_until(lambda: value(other, RELEASE, name, "me", fence) or life(other, name) == "expired")
        start = threading.Barrier(20)

        def compete(number):
            with session(autocommit=True) as conn:
                start.wait()
                return value(conn, ACQUIRE, name, f"rival {number}", "30 s")

        with ThreadPoolExecutor(20) as pool:
            fences = [fence for fence in pool.map(compete, range(20)) if fence is not None]
        assert len(fences) == 1

    def test_who_sees_it_free_a_moment_too_late_gets_nothing(self, name, other):
        """Two see it free; the first one's transaction is still open when the second one wants the row."""
        value(other, RELEASE, name, "me", value(other, ACQUIRE, name, "me", "30 s"))
        with session() as first, ThreadPoolExecutor() as pool:
            fence = value(first, ACQUIRE, name, "first", "30 s")
            second = pool.submit(value, other, ACQUIRE, name, "second", "30 s")
            wait_until_blocked(other.info.backend_pid)
            first.commit()
            assert (fence is not None, second.result()) == (True, None)

    def test_an_open_transaction_that_got_nothing_does_not_keep_the_holder_from_renewing(self, name, other):
        with session() as bystander:
            fence = value(other, ACQUIRE, name, "me", "30 s")
            assert value(bystander, ACQUIRE, name, "you", "30 s") is None
            other.execute("SET lock_timeout = '2s'")
            assert value(other, RENEW, name, "me", fence, "30 s") is True

    def test_not_even_one_that_lost_the_race_for_the_row(self, name, other):
        value(other, RELEASE, name, "me", value(other, ACQUIRE, name, "me", "30 s"))
        with session() as first, session() as bystander, ThreadPoolExecutor() as pool:
            fence = value(first, ACQUIRE, name, "first", "30 s")
            late = pool.submit(value, bystander, ACQUIRE, name, "late", "30 s")
            wait_until_blocked(bystander.info.backend_pid)
            first.commit()
            assert late.result() is None
            other.execute("SET lock_timeout = '2s'")
            assert value(other, RENEW, name, "first", fence, "30 s") is True

    def test_a_lock_taken_in_a_transaction_that_is_undone_was_never_taken(self, name, other):
        with session() as first:
            assert value(first, ACQUIRE, name, "first", "30 s") is not None
        assert value(other, ACQUIRE, name, "me", "30 s") is not None

    def test_an_unfinished_transaction_is_not_waited_for_long(self, name, other):
        """Nobody knows yet whether the other one has it: the answer is no, after a second."""
        with session() as first:
            value(first, ACQUIRE, name, "first", "30 s")
            assert value(other, ACQUIRE, name, "me", "30 s") is None


class TestPresence:
    """A holder with presence holds an advisory lock on its session; without it the lease alone decides."""

    PRESENT = "SELECT pg_advisory_lock(rowlock_lock_class(), hashtext('holder'))"
    TAKE = "SELECT rowlock_lock_acquire(%s, 'holder', '10 min', has_presence => true)"

    def test_while_the_session_lives_nobody_else_gets_it(self, name, other):
        with session(autocommit=True) as holder:
            holder.execute(self.PRESENT)
            value(holder, self.TAKE, name)
            assert (life(other, name), value(other, ACQUIRE, name, "me", "30 s")) == ("alive", None)

    def test_after_the_session_a_single_call_takes_it_over(self, name, other):
        with session(autocommit=True) as holder:
            holder.execute(self.PRESENT)
            fence = value(holder, self.TAKE, name)
        wait_until(lambda: life(other, name) == "missing")
        assert value(other, ACQUIRE, name, "me", "30 s") > fence

    def test_one_that_is_back_at_the_second_look_keeps_it(self, name, other):
        with session(autocommit=True) as holder:
            holder.execute(self.PRESENT)
            fence = value(holder, self.TAKE, name)
        with session(autocommit=True) as again, ThreadPoolExecutor() as pool:
            wait_until(lambda: life(again, name) == "missing")
            late = pool.submit(value, other, ACQUIRE, name, "me", "30 s")
            wait_until(lambda: sleeps(again, other.info.backend_pid), every=0.005)
            again.execute(self.PRESENT)
            assert late.result() is None
            assert value(again, RENEW, name, "holder", fence, "10 min") is True

    def test_presence_of_an_earlier_epoch_proves_nothing_by_its_absence(self, name, other):
        with session(autocommit=True) as holder:
            holder.execute(self.PRESENT)
            value(holder, self.TAKE, name)
        other.execute("UPDATE tasks_lock SET presence_epoch = 'before the restart'")
        wait_until(lambda: life(other, name) == "restarted")
        assert value(other, ACQUIRE, name, "me", "30 s") is None

    def test_who_only_watches_is_not_taken_for_the_holder(self, name, other):
        with session(autocommit=True) as holder:
            holder.execute(self.PRESENT)
            value(holder, self.TAKE, name)
        with session(autocommit=True) as watcher:
            watcher.execute("SELECT pg_advisory_lock_shared(rowlock_lock_class(), hashtext('holder'))")
            wait_until(lambda: life(other, name) == "missing")


def sleeps(conn, pid):
    return value(conn, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'", pid)


class TestTheAdvisoryLockItself:
    """Other programs may simply take pg_advisory_lock(rowlock_lock_key(name)), without a row."""

    KEY = "SELECT pg_advisory_lock(rowlock_lock_key(%s))"

    def test_it_keeps_the_advisory_backend_out_which_names_the_session(self, name):
        with session("nightly.sh", autocommit=True) as script:
            script.execute(self.KEY, [name])
            with pytest.raises(LockHeld, match=f"held by backend {script.info.backend_pid} nightly.sh"):
                lock(name, ttl=30, backend="advisory").acquire()
        with lock(name, ttl=30, wait=20, backend="advisory"):
            pass

    def test_it_is_waited_for(self, name, monkeypatch):
        monkeypatch.setattr("tasks.locking.named.postgres.RECHECK_SECONDS", 60.0)
        with session("nightly.sh", autocommit=True) as script, ThreadPoolExecutor() as pool:
            script.execute(self.KEY, [name])
            waiting = pool.submit(lock(name, ttl=30, wait=50, backend="advisory").acquire)
            wait_until(lambda: value(script, "SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
            script.execute("SELECT pg_advisory_unlock_all()")
            waiting.result(timeout=10).release()

    def test_one_name_excludes_across_both_backends(self, name):
        for first, second in (("lease", "advisory"), ("advisory", "lease")):
            with lock(name, ttl=30, backend=first), pytest.raises(LockHeld):
                lock(name, ttl=30, backend=second).acquire()


class TestNonsense:
    @pytest.mark.parametrize(
        ("name", "owner", "ttl"),
        [("", "me", "1 s"), (None, "me", "1 s"), ("x" * 256, "me", "1 s"), ("x", "", "1 s"), ("x", None, "1 s"),
         ("x", "me", "0 s"), ("x", "me", "-1 s"), ("x", "me", None), ("x", "me", "2 years")],
    )  # fmt: skip
    def test_is_refused_with_a_hint(self, other, name, owner, ttl):
        with pytest.raises(psycopg.errors.InvalidParameterValue) as refusal:
            value(other, ACQUIRE, name, owner, ttl)
        assert refusal.value.diag.message_hint

    def test_a_renewal_for_no_time(self, name, other):
        fence = value(other, ACQUIRE, name, "me", "30 s")
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            value(other, RENEW, name, "me", fence, "0 s")


def test_a_caller_with_another_search_path_means_the_same_lock(name, other):
    with session(autocommit=True) as elsewhere:
        elsewhere.execute("SET search_path = pg_catalog")
        value(elsewhere, "SELECT public.rowlock_lock_acquire(%s, 'me', '30 s')", name)
    assert value(other, ACQUIRE, name, "you", "30 s") is None


def test_a_lock_freed_behind_the_holders_back_is_reported_as_lost(name):
    with pytest.raises(LockLost), lock(name, ttl=30) as held, connection.cursor() as cursor:
        cursor.execute(RELEASE, [name, held.owner, held.fence])
