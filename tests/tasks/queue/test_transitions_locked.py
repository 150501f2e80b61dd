"""Flushing while other sessions hold rows: nobody's ending is lost, and none waits for another's."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from tasks.models import Attempt, RefusedWrite, Task
from tasks.queue import completion
from tasks.queue.completion import Ending, Failure
from tests.races.crew import worker_sessions
from tests.sessions import session, wait_until_blocked
from tests.tasks import rows
from tests.tasks.claiming import claim, ids

pytestmark = pytest.mark.django_db(transaction=True)


def ending(claimed, failure=None) -> Ending:
    now = time.monotonic()
    return Ending(claimed.id, claimed.version, claimed.attempt, now, now, failure=failure)


def broken(claimed) -> Ending:
    return ending(claimed, Failure("builtins.ValueError", "", 0.0))


@pytest.fixture
def worker_session():
    with worker_sessions(1) as [conn]:
        yield conn


@contextmanager
def held(task_id):
    """A session that holds the row."""
    with session() as other:
        other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [task_id])
        yield other


class TestAroundALockedRow:
    @pytest.fixture
    def endings(self):
        rows.many(4)
        good, bad, fine, wrong = claim()
        return [ending(good), broken(bad), ending(fine), broken(wrong)]

    @pytest.mark.parametrize("place", range(4))
    def test_the_others_are_written_and_it_later(self, endings, worker_session, place):
        with held(endings[place].id) as other:
            result = completion.flush(worker_session, "w1", endings, skip_locked=True)
            assert result.locked == [endings[place]]
            assert (result.completed + result.failed, result.refused) == (3, [])
            assert ids(Task.objects.processing()) == [endings[place].id]
            other.rollback()
            result = completion.flush(worker_session, "w1", result.locked, skip_locked=True)
        assert (result.completed + result.failed, result.locked) == (1, [])
        assert (Task.objects.completed().count(), Attempt.objects.count()) == (2, 2)

    def test_who_does_not_skip_gives_up_and_has_written_nothing(self, endings, worker_session):
        with held(endings[1].id), pytest.raises(psycopg.errors.LockNotAvailable):
            completion.flush(worker_session, "w1", endings)
        assert Task.objects.processing().count() == 4

    def test_a_row_that_is_being_deleted_is_waited_for_and_then_refused(self, endings, worker_session):
        with session() as other:
            other.execute("DELETE FROM tasks_task WHERE id = %s", [endings[0].id])
            result = completion.flush(worker_session, "w1", endings, skip_locked=True)
            assert result.locked == endings[:1]
            other.commit()
            result = completion.flush(worker_session, "w1", result.locked, skip_locked=True)
        assert (result.locked, result.refused) == ([], [endings[0].id])
        assert RefusedWrite.objects.get().actual_version is None

    def test_an_edit_that_is_not_committed_yet_is_rebased_upon(self, worker_session):
        rows.ready()
        [claimed] = claim()
        with session() as other, ThreadPoolExecutor() as pool:
            other.execute("UPDATE tasks_task SET priority = 9")
            flushed = pool.submit(completion.flush, worker_session, "w1", [ending(claimed)])
            wait_until_blocked(worker_session.info.backend_pid)
            other.commit()
            assert (flushed.result().completed, flushed.result().rebased) == (1, 1)


@pytest.mark.parametrize("skip_locked", [False, True])
def test_a_late_write_is_refused_at_once_though_the_new_holder_keeps_the_row_locked(worker_session, skip_locked):
    """A pessimistic worker holds its row through the work; who lost it must not wait for that."""
    rows.ready()
    [claimed] = claim()
    Task.objects.update(claimed_by="w2")
    with held(claimed.id):
        result = completion.flush(worker_session, "w1", [ending(claimed)], skip_locked=skip_locked)
    assert (result.refused, result.locked) == ([claimed.id], [])


SHARING = """
SELECT array_agg(name) FROM (SELECT 'w' || number AS name FROM generate_series(1, 1000) AS number) AS workers
GROUP BY hashtext(name) & 32767 HAVING count(*) > 1 LIMIT 1
"""


def test_f06_flushes_that_meet_on_two_queues_do_not_deadlock(worker_session):
    """Workers that share rows of the throughput: each has ended a task well in one queue and badly in the other."""
    [(one, two, *_)] = worker_session.execute(SHARING).fetchone()
    ended = {}
    for worker_id, good, bad in ((one, "a", "b"), (two, "b", "a")):
        rows.ready(queue_name=good)
        [fine] = claim(worker_id=worker_id)
        rows.ready(queue_name=bad)
        [wrong] = claim(worker_id=worker_id)
        ended[worker_id] = [ending(fine), broken(wrong)]
    with held(ended[one][1].id) as other, worker_sessions(2) as sessions, ThreadPoolExecutor() as pool:
        first = pool.submit(completion.flush, sessions[0], one, ended[one])
        wait_until_blocked(sessions[0].info.backend_pid)
        second = pool.submit(completion.flush, sessions[1], two, ended[two])
        assert second.result().failed == 1
        other.rollback()
        assert first.result().failed == 1
    assert (Task.objects.completed().count(), Task.objects.ready().count()) == (2, 2)
