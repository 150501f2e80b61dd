"""One supervisor of many looks for dead workers; the others do when they hear no more of that."""

import time

import pytest

from tasks.worker import options
from tasks.worker.maintenance import LATE_SWEEP_SECONDS, Maintenance
from tasks.worker.options import Options
from tasks.worker.session import readable_within
from tests.waiting import wait_until


@pytest.fixture
def supervisors(settings, database):
    """Two of them, which have swept once."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    both = [Maintenance(), Maintenance()]
    for one in both:
        one.tick([])
    yield both
    for one in both:
        one.close()


def sweep(one):
    one.sweep_at = 0.0
    one.tick([])
    return one.sweep_at


def hears_something(one):
    return bool(readable_within(one.descriptors(), 0))


def test_one_sweeps_and_the_others_wait_until_it_is_late(supervisors, database):
    options.register(database.connection, "w1", Options())
    first, second = supervisors
    due_at = sweep(first)
    wait_until(lambda: hears_something(second))
    second.tick([])
    assert LATE_SWEEP_SECONDS[0] / 2 < second.sweep_at - due_at < LATE_SWEEP_SECONDS[1] + 0.5
    first.tick([])
    assert first.sweep_at == due_at, "it does not wait for itself"


def test_a_request_is_still_read_at_once(supervisors, database):
    """A notification of a sweep makes nobody read requests; any other one does."""
    first, second = supervisors
    options.register(database.connection, "w1", Options())
    sweep(first)
    wait_until(lambda: hears_something(second))
    second.requests_at = later = time.monotonic() + 300
    second.tick([])
    assert second.requests_at == later
    database.rows("NOTIFY rowlock_control_public")
    wait_until(lambda: hears_something(second))
    second.tick([])
    assert second.requests_at < later


def test_a_supervisor_of_all_workers_tells_nobody(supervisors, database):
    """A notification costs the disk a commit; an idle installation of one host has none."""
    first, second = supervisors
    sweep(first)
    database.rows("NOTIFY rowlock_control_public, 'sent later'")
    wait_until(lambda: hears_something(second))
    heard = []
    second._hear = lambda notification, **_: heard.append(notification.payload)
    second.tick([])
    assert heard == ["sent later"]
