"""Recovery while other sessions hold rows: it waits for nobody, starves nothing, and convicts nobody who is held."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import Task, Worker
from tasks.queue import presence, recovery, set_aside
from tests.races.crew import worker_sessions
from tests.sessions import session
from tests.tasks import rows
from tests.tasks.claiming import ids

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sweeper(monkeypatch):
    """A session as supervisors have it: to wait for a lock is an error. No second, careful try hides it."""
    monkeypatch.setattr(set_aside, "attempt", lambda connection, work: work(set_aside.Writes(connection)))
    with worker_sessions(1) as [conn]:
        conn.execute("SET lock_timeout = '300ms'")
        yield conn


def look_again_later():
    Worker.objects.filter(missing_since__isnull=False).update(missing_since=timezone.now() - timedelta(1))


class TestLockedTasks:
    def test_are_left_and_the_rest_is_taken_back(self, sweeper):
        worker = rows.dead_worker()
        tasks = [rows.processing(worker) for _ in range(5)]
        with session() as other:
            other.execute("SELECT FROM tasks_task WHERE id = ANY(%s) FOR UPDATE", [ids(tasks[:2])])
            assert recovery.sweep(sweeper).requeued == ids(tasks[2:])
            other.rollback()
            assert recovery.sweep(sweeper).requeued == ids(tasks[:2])

    def test_f19_do_not_count_for_the_limit(self, sweeper):
        worker = rows.dead_worker()
        tasks = [rows.processing(worker) for _ in range(5)]
        with session() as other:
            other.execute("SELECT FROM tasks_task WHERE id < %s FOR UPDATE", [tasks[-1].pk])
            assert recovery.sweep(sweeper, limit=1).requeued == [tasks[-1].pk]


class TestLockedWorkers:
    def test_are_not_convicted(self, sweeper):
        task = rows.processing(rows.just_died_worker())
        recovery.sweep(sweeper)
        look_again_later()
        with session() as other:
            other.execute("SELECT FROM tasks_worker FOR UPDATE")
            assert recovery.sweep(sweeper).rows == []
            assert Worker.objects.get().stopped_at is None
            other.rollback()
            assert recovery.sweep(sweeper).requeued == [task.pk]

    def test_f19_keep_nobody_from_looking_at_the_others(self, sweeper):
        rows.processing(rows.just_died_worker("a"))
        task = rows.processing(rows.just_died_worker("b"))
        with session() as other:
            other.execute("SELECT FROM tasks_worker WHERE id = 'a' FOR UPDATE")
            assert recovery.sweep(sweeper).suspects == ["a", "b"]
            look_again_later()
            assert recovery.sweep(sweeper).requeued == [task.pk]

    def test_that_came_back_keep_nobody_either(self, sweeper):
        task = rows.processing(rows.dead_worker())
        with rows.living_worker() as living, session() as other:
            Worker.objects.filter(pk=living).update(missing_since=timezone.now())
            other.execute("SELECT FROM tasks_worker WHERE id = %s FOR UPDATE", [living])
            assert recovery.sweep(sweeper).requeued == [task.pk]

    def test_get_no_heartbeat_and_the_others_do(self, sweeper):
        """To be locked is not to be convicted: a worker that is told so would give up its work."""
        yesterday = timezone.now() - timedelta(days=1)
        for name in ("a", "b"):
            Worker.objects.create(id=name, hostname="host", pid=1, heartbeat_at=yesterday)
        with session() as other:
            other.execute("SELECT FROM tasks_worker WHERE id = 'a' FOR UPDATE")
            assert presence.beat(sweeper, ["a", "b"]) == {"a", "b"}
        assert Worker.objects.get(heartbeat_at__gt=yesterday).id == "b"

    def test_of_a_child_that_was_seen_to_die_are_no_hindrance(self, sweeper):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
        with session() as other:
            other.execute("SELECT FROM tasks_worker FOR UPDATE")
            assert recovery.take_back(sweeper, [worker]).requeued == [task.pk]


class TestOneSweeperAtATime:
    def test_f08_the_others_do_nothing(self, sweeper):
        rows.processing(rows.dead_worker())
        with session() as elected:
            elected.execute("SELECT")
            assert len(recovery.sweep(elected).rows) == 1
            assert recovery.sweep(sweeper) == recovery.Sweep()
            elected.rollback()
            assert len(recovery.sweep(sweeper).rows) == 1

    def test_a_person_need_not_wait_for_it(self):
        task = rows.processing(rows.dead_worker())
        with session() as elected:
            elected.execute(recovery.ELECT)
            assert recovery.recover(connection).requeued == [task.pk]
        assert Task.objects.get().status == "READY"

    def test_in_another_schema_there_is_another(self, sweeper):
        task = rows.processing(rows.dead_worker())
        with session() as lab:
            lab.execute("CREATE SCHEMA lab_1")
            lab.execute("SET LOCAL search_path = lab_1")
            lab.execute(recovery.ELECT)
            assert recovery.sweep(sweeper).requeued == [task.pk]
