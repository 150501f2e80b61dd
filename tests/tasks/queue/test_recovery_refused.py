"""A row or a worker that the database refuses to change: it is set aside, and everything else is recovered."""

import logging
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tasks.models import Attempt, RecoveryFailure, Task, Worker
from tasks.queue import recovery, set_aside
from tests import commands
from tests.races.crew import worker_sessions
from tests.sessions import session
from tests.tasks import rows
from tests.tasks.claiming import ids

pytestmark = pytest.mark.django_db(transaction=True)

# Ways in which an adopter's schema refuses that one row, of the queue `poison`, is no longer PROCESSING.
FUNCTION = """
CREATE FUNCTION test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.queue_name = 'poison' AND NEW.status <> 'PROCESSING' THEN RAISE 'never from %', NEW.queue_name; END IF;
    RETURN NEW;
END $$;
"""
WAITING_FUNCTION = """
CREATE FUNCTION test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.queue_name = 'poison' THEN PERFORM FROM tasks_queue WHERE name = 'held' FOR UPDATE; END IF;
    RETURN NEW;
END $$;
"""
ENDING_FUNCTION = """
CREATE FUNCTION test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
"""
TRIGGER = "CREATE TRIGGER test_refuse BEFORE UPDATE ON tasks_task FOR EACH ROW EXECUTE FUNCTION test_refuse()"
DEFERRED_TRIGGER = """
CREATE CONSTRAINT TRIGGER test_refuse AFTER UPDATE ON tasks_task DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION test_refuse()
"""
REFUSALS = {
    "a trigger": FUNCTION + TRIGGER,
    "a deferred trigger": FUNCTION + DEFERRED_TRIGGER,
    "a check": """
        ALTER TABLE tasks_task ADD CONSTRAINT test_refuse
        CHECK (queue_name <> 'poison' OR status = 'PROCESSING' OR task_path = 'for the unique key')
        """,
    "a unique key": """
        CREATE UNIQUE INDEX test_refuse ON tasks_task (queue_name) WHERE queue_name = 'poison' AND status = 'READY'
        """,
}
PERMIT = """
DROP TRIGGER IF EXISTS test_refuse ON tasks_task;
DROP TRIGGER IF EXISTS test_refuse ON tasks_worker;
DROP FUNCTION IF EXISTS test_refuse();
ALTER TABLE tasks_task DROP CONSTRAINT IF EXISTS test_refuse;
DROP INDEX IF EXISTS test_refuse;
"""
WORKER_TRIGGER = """
CREATE FUNCTION test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this worker'; END $$;
CREATE TRIGGER test_refuse BEFORE UPDATE ON tasks_worker FOR EACH ROW WHEN (OLD.id = 'w1')
EXECUTE FUNCTION test_refuse()
"""


def execute(statements):
    with connection.cursor() as cursor:
        cursor.execute(statements)


@pytest.fixture
def permit():
    """Take the refusal away; at the end in any case."""
    yield lambda: execute(PERMIT)
    execute(PERMIT)


@pytest.fixture(params=REFUSALS)
def refusing(request, permit):
    rows.ready(queue_name="poison", task_path="for the unique key")
    execute(REFUSALS[request.param])


@pytest.fixture
def refusing_by_trigger(permit):
    execute(REFUSALS["a trigger"])


@pytest.fixture
def sweeper():
    with worker_sessions(1) as [conn]:
        conn.execute("SET lock_timeout = '100ms'")
        yield conn


def lost(*queues: str) -> list[Task]:
    """A task in each of these queues, of a worker that is known to be dead."""
    worker = rows.dead_worker()
    return [rows.processing(worker, queue_name=queue) for queue in queues]


def retry_now():
    RecoveryFailure.objects.update(retry_at=timezone.now() - timedelta(seconds=1))


def status(task: Task) -> str:
    return Task.objects.get(pk=task.pk).status


@pytest.mark.usefixtures("refusing")
def test_one_row_that_is_refused_keeps_nobody_else_from_being_recovered(sweeper):
    first, poison, *others = lost("a", "poison", "b", "c", "d")
    swept = recovery.sweep(sweeper)
    assert swept.requeued == ids([first, *others])
    assert list(swept.refused) == [poison.pk]
    assert status(poison) == "PROCESSING"
    assert set(Attempt.objects.values_list("task_id", flat=True)) == set(swept.requeued)
    [failure] = RecoveryFailure.objects.all()
    assert (failure.target, failure.task_id, failure.worker_id) == (f"task:{poison.pk}", poison.pk, poison.claimed_by)
    assert failure.error == swept.refused[poison.pk] != ""


@pytest.mark.usefixtures("refusing_by_trigger")
def test_it_is_left_alone_and_does_not_count_for_the_limit(sweeper):
    poison, other = lost("poison", "a")
    assert list(recovery.sweep(sweeper, limit=1).refused) == [poison.pk]
    swept = recovery.sweep(sweeper, limit=1)
    assert (swept.requeued, swept.refused) == ([other.pk], {})


@pytest.mark.usefixtures("refusing_by_trigger")
def test_it_is_told_once_and_tried_again_ever_more_rarely(sweeper, permit, caplog):
    [poison] = lost("poison")
    pauses = []
    for tries in (1, 2, 3):
        assert list(recovery.sweep(sweeper).refused) == [poison.pk]
        assert recovery.sweep(sweeper).refused == {}, "it was tried again too soon"
        failure = RecoveryFailure.objects.get()
        assert failure.tries == tries
        pauses.append(failure.retry_at - timezone.now())
        retry_now()
    assert pauses == sorted(pauses)
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert f"task:{poison.pk}" in line
    assert "never from poison" in line
    permit()
    assert recovery.sweep(sweeper).requeued == [poison.pk]
    assert not RecoveryFailure.objects.exists()


def test_a_row_whose_trigger_waits_for_somebody(sweeper, permit):
    execute("INSERT INTO tasks_queue (name) VALUES ('held');" + WAITING_FUNCTION + TRIGGER)
    poison, *others = lost("poison", "a", "b", "c")
    with session() as other:
        other.execute("SELECT FROM tasks_queue FOR UPDATE")
        swept = recovery.sweep(sweeper)
    assert (swept.requeued, list(swept.refused)) == (ids(others), [poison.pk])
    retry_now()
    assert recovery.sweep(sweeper).requeued == [poison.pk]


@pytest.mark.usefixtures("refusing_by_trigger")
def test_the_supervisor_of_a_worker_that_died_survives_it_too(sweeper):
    poison, other = lost("poison", "a")
    swept = recovery.take_back(sweeper, [poison.claimed_by])
    assert (swept.requeued, list(swept.refused)) == ([other.pk], [poison.pk])
    assert RecoveryFailure.objects.get().task_id == poison.pk


@pytest.mark.usefixtures("refusing_by_trigger")
def test_the_command_takes_back_the_rest_and_says_what_was_refused(monkeypatch):
    """A chunk of which nothing can be taken back is not met for ever."""
    monkeypatch.setattr(recovery, "CHUNK", 2)
    first, second, *others = lost("poison", "poison", "b", "c", "d")
    outcome = commands.run("recover_tasks", "--json")
    assert outcome.status == 1
    assert outcome.data["ids"] == ids(others)
    assert outcome.data["refused"] == [{"id": task.pk, "error": "never from poison"} for task in (first, second)]
    assert f"Task {second.pk}: the database refused: never from poison" in outcome.stderr


class TestWorkers:
    @pytest.fixture
    def two_that_died(self):
        """Only the second one may be changed."""
        tasks = [rows.processing(rows.just_died_worker(name)) for name in ("w1", "w2")]
        execute(WORKER_TRIGGER)
        return tasks

    def convict(self, sweeper):
        recovery.sweep(sweeper)
        Worker.objects.filter(pk="w2").update(missing_since=timezone.now() - timedelta(seconds=1))
        return recovery.sweep(sweeper)

    def test_one_that_is_refused_keeps_nobody_else_from_being_convicted(self, sweeper, permit, two_that_died):
        kept, taken = two_that_died
        swept = self.convict(sweeper)
        assert (swept.suspects, swept.dead, swept.requeued) == ([], ["w2"], [taken.pk])
        [failure] = RecoveryFailure.objects.all()
        assert (failure.target, failure.task_id, failure.error) == ("worker:w1", None, "not this worker")
        permit()
        retry_now()
        assert recovery.sweep(sweeper).suspects == ["w1"]
        assert not RecoveryFailure.objects.exists()
        Worker.objects.filter(pk="w1").update(missing_since=timezone.now() - timedelta(seconds=1))
        assert recovery.sweep(sweeper).requeued == [kept.pk]

    def test_one_that_cannot_even_be_read(self, sweeper):
        rows.just_died_worker("w1")
        execute("UPDATE tasks_worker SET started_at = 'infinity' WHERE id = 'w1'")
        task = rows.processing(rows.just_died_worker("w2"))
        assert self.convict(sweeper).requeued == [task.pk]
        assert RecoveryFailure.objects.get().target == "worker:w1"


def test_the_end_of_the_session_is_no_refusal(sweeper, permit):
    execute(ENDING_FUNCTION + TRIGGER)
    lost("poison")
    with pytest.raises(psycopg.errors.AdminShutdown):
        recovery.sweep(sweeper)
    assert not RecoveryFailure.objects.exists()


def test_who_is_not_refused_pays_nothing_for_it():
    """No savepoint, and nothing is asked of the constraints."""
    with CaptureQueriesContext(connection) as queries:
        assert set_aside.attempt(connection, lambda writes: writes.for_tasks([1, 2], lambda ids: [ids])) == [[1, 2]]
    assert len(queries) == 0
    [task] = lost("a")
    with CaptureQueriesContext(connection) as queries:
        assert recovery.sweep(connection).requeued == [task.pk]
    assert not [query["sql"] for query in queries if set_aside.AT_ONCE in query["sql"]]


def test_the_careful_sweep_looks_for_the_same_rows_as_the_ordinary_one():
    def conditions(statement: str) -> list[str]:
        begin = statement.index("FROM tasks_task AS task")
        return statement[begin : statement.index("SKIP LOCKED")].split()

    assert conditions(recovery.LOST) == conditions(recovery.TAKE_BACK)
