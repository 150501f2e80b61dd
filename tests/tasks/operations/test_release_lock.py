"""`release_lock`: the lock of a holder that is gone is freed, that of a live one stays."""

import pytest
from django.db import connection

from tasks.locking import lock
from tasks.locking.named import backends
from tasks.models import Intervention, Lock
from tests.commands import database_url, run
from tests.lockers import locker
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def release(name, fence, *argv):
    return run("release_lock", name, "--fence", fence, "--json", *argv)


def acquire(name, ttl="1 hour"):
    """Take the lock as a program in another language would; its fence."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT rowlock_lock_acquire(%s, 'nightly.pl', %s::interval)", [name, ttl])
        return cursor.fetchone()[0]


@pytest.fixture
def dead(postgres_backend, name):
    """The fence of a lock whose holder was killed a moment ago."""
    with locker(database_url(), name, ttl=600, backend=postgres_backend) as holder:
        fence = holder.hear()["fence"]
        holder.kill()
    wait_until(lambda: backends.holder(name).life == "missing")
    return fence


def test_the_lock_of_a_dead_holder_is_freed_and_audited(name, dead):
    outcome = release(name, dead, "--reason", "killed by hand")
    assert (outcome.status, outcome.data["released"], outcome.data["holder"]["life"]) == (0, True, "missing")
    assert Lock.objects.get().owner is None
    left = Intervention.objects.get()
    assert (left.action, left.target, left.reason) == (f"release fence={dead}", f"lock:{name}", "killed by hand")


def test_a_waiter_is_woken_by_it(name, monkeypatch):
    fence = acquire(name)
    with locker(database_url(), name, ttl=30, wait=60) as waiting:
        wait_until(lambda: backends.waiters())
        assert release(name, fence, "--reason", "gone").data["released"]
        assert waiting.hear(4)["event"] == "held"


def test_a_live_holder_keeps_its_lock(backend, name, monkeypatch):
    monkeypatch.setenv("ROWLOCK_LOCK_BACKEND", backend)
    with lock(name, ttl=30) as held:
        outcome = release(name, held.fence)
        assert (outcome.status, outcome.data["released"]) == (1, False)
        assert outcome.data["holder"]["owner"] == held.owner
        assert not held.is_lost
    assert not Intervention.objects.exists()


def test_a_reason_does_not_move_one_that_is_seen_to_live(postgres_backend, name):
    with lock(name, ttl=30, backend=postgres_backend) as held:
        outcome = release(name, held.fence, "--reason", "I want it")
        assert (outcome.status, f"Stop process {held._contender.pid}" in outcome.stderr) == (1, True)


def test_another_fence_is_another_holding(name):
    fence = acquire(name)
    outcome = release(name, fence - 1, "--reason", "gone")
    assert (outcome.status, f"held by nightly.pl under fence {fence}" in outcome.stderr) == (1, True)


def test_one_that_nothing_tells_of_needs_a_reason(name):
    fence = acquire(name)
    outcome = release(name, fence)
    assert (outcome.status, "cannot be seen, so that it may live" in outcome.stderr) == (1, True)
    assert release(name, fence, "--reason", "its host burned down").data["released"]


def test_one_whose_lease_is_over_needs_none(name):
    fence = acquire(name, "0.1 s")
    wait_until(lambda: backends.holder(name) is None)
    assert release(name, fence).data["released"]


def test_after_a_restart_of_the_database_the_holder_may_come_back(name, dead):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tasks_lock SET presence_epoch = 'before the restart'")
    outcome = release(name, dead, "--reason", "killed by hand")
    assert (outcome.status, "may come back after the restart" in outcome.stderr) == (1, True)


def test_in_redis_a_reason_frees_it(redis_url, name, monkeypatch):
    monkeypatch.setenv("ROWLOCK_LOCK_BACKEND", "redis")
    with locker(database_url(), name, ttl=600, backend="redis") as holder:
        fence = holder.hear()["fence"]
        assert release(name, fence).status == 1
        assert release(name, fence, "--reason", "gone").data["released"]
        with lock(name, ttl=30):
            assert holder.ask("release")["event"] == "LockLost"


def test_once_more_there_is_nothing_to_do(name):
    fence = acquire(name)
    assert release(name, fence, "--reason", "gone").data["released"]
    outcome = release(name, fence, "--reason", "gone")
    assert (outcome.status, outcome.data["released"], outcome.stderr) == (0, False, "")
    assert "Nobody holds the lock" in run("release_lock", name, "--fence", fence).stdout
    assert Intervention.objects.count() == 1


@pytest.mark.parametrize("state", ["never held", "never held under this fence"])
def test_nobody_holds_it(name, state):
    fence = 1
    if state != "never held":
        with lock(name, ttl=30) as held:
            fence = held.fence + 1
    outcome = release(name, fence)
    assert (outcome.status, "Nobody holds the lock" in outcome.stderr) == (1, True)


def test_a_dry_run_frees_nothing(name):
    fence = acquire(name)
    assert release(name, fence, "--reason", "gone", "--dry-run").data["released"]
    assert Lock.objects.get().owner == "nightly.pl"
    assert not Intervention.objects.exists()


@pytest.mark.parametrize("argv", [(), ("x",), ("x", "--fence", "0"), ("x", "--fence", "x"), ("", "--fence", "1")])
def test_usage_errors(argv):
    assert run("release_lock", *argv).status == 2
