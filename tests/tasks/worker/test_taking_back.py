"""What a supervisor writes of its children late, after a death or an outage: races that no process loses on demand."""

import math
import threading
import time

import psycopg
import pytest

from tasks.queue import presence, strategies
from tasks.queue import release as releases
from tasks.queue.claim import Claimer
from tasks.worker.maintenance import STALL_SECONDS, Child, Maintenance
from tasks.worker.shared_state import EARLIER_LIMIT, SharedState
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until


@pytest.fixture
def maintenance(settings, database):
    """A supervisor's maintenance on the test's database."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    maintenance = Maintenance()
    maintenance.sweep_at = math.inf  # `w1` has no presence
    yield maintenance
    maintenance.close()


def claim(database, count=10):
    """What worker `w1` claims now."""
    return strategies.claim(database.connection, Claimer("w1"), count)


def child_running(batch, **attributes):
    """A child `w1` that has begun the first task of its batch."""
    state = SharedState()
    state.publish(batch)
    state.begin(0, None)
    return Child("w1", 1, state, time.monotonic(), **attributes)


@pytest.mark.parametrize(
    ("killed_for", "outcome", "status"), [("timeout", "timed_out", "READY"), ("cancel", "released", "CANCELLED")]
)
def test_what_was_meant_ends_for_the_reason_of_the_kill(database, maintenance, killed_for, outcome, status):
    [task_id] = database.enqueue(handlers.work)
    maintenance.take_back(child_running(claim(database), killed_for=killed_for, doomed={(task_id, 1)}))
    maintenance.tick([])
    assert database.outcomes(task_id) == [outcome]
    assert database.task(task_id).status == status


@pytest.mark.parametrize("killed_for", ["timeout", "cancel"])
def test_what_began_before_the_signal_arrived_is_given_back(database, maintenance, killed_for):
    [task_id] = database.enqueue(handlers.work)
    maintenance.take_back(child_running(claim(database), killed_for=killed_for, doomed={(task_id - 1, 1)}))
    maintenance.tick([])
    task = database.task(task_id)
    assert database.outcomes(task_id) == ["released"]
    assert (task.status, task.attempt, task.max_attempts) == ("READY", 1, 6)


def test_a_late_release_does_not_take_what_was_claimed_again(database, maintenance):
    """The child gave its rows back itself and claimed them again before the supervisor could write."""
    [first, second] = database.enqueue(handlers.work, count=2)
    batch = claim(database)
    maintenance.release("w1", child_running(batch).state.take_unstarted())
    releases.release(database.connection, "w1", [(batch[1].id, batch[1].started_at)])
    assert [again.id for again in claim(database)] == [second]
    maintenance.tick([])
    assert {row.status for row in (database.task(first), database.task(second))} == {"PROCESSING"}


def test_what_a_child_has_not_begun_is_given_back_once(database, maintenance):
    [first, second] = database.enqueue(handlers.work, count=2)
    state = child_running(claim(database)).state
    maintenance.release("w1", state.take_unstarted())
    maintenance.release("w1", state.take_unstarted())
    maintenance.tick([])
    assert database.task(first).status == "PROCESSING"
    task = database.task(second)
    assert (task.status, task.attempt, task.version) == ("READY", 0, 3)
    assert not state.begin(1, None), "the child must not begin what was taken from it"


def test_what_was_taken_back_is_not_carried_into_the_next_batch(database):
    database.enqueue(handlers.work, count=3)
    batch = claim(database, 2)
    state = child_running(batch).state
    assert state.publish([batch[1], *claim(database, 1)], has_carried=True)
    assert [id for id, _ in state.take_unstarted()] == [batch[1].id, batch[1].id + 1]
    assert not state.publish([batch[1]], has_carried=True)
    assert state.publish([])


def test_a_request_to_cancel_is_for_one_attempt_in_its_slot(database):
    database.enqueue(handlers.work, count=2)
    state = SharedState(3)
    state.publish(claim(database))
    assert state.begin(0, 60.0, slot=2)
    [running] = state.running()
    assert running.slot == 2
    assert running.late_seconds < 0
    state.cancel(running)
    assert state.to_cancel() == [(2, running.id)]
    for next_in_the_slot in (1, 0):  # the same task may come again
        state.end(2)
        assert state.begin(next_in_the_slot, None, slot=2)
        assert state.to_cancel() == []


def fates(database, batch):
    """Status, attempts that are spent, and what became of each."""
    rows = [database.task(claim.id) for claim in batch]
    return [(row.status, row.attempt, *database.outcomes(row.id)) for row in rows]


NOT_BEGUN, ABANDONED = ("READY", 0), ("READY", 1, "abandoned")


def test_f02_a_claim_whose_answer_died_with_the_child_costs_no_attempt(database, maintenance):
    database.enqueue(handlers.work, count=4)
    known, unknown = claim(database, 2), claim(database, 2)
    maintenance.take_back(child_running(known))
    maintenance.tick([])
    assert fates(database, known) == [ABANDONED, NOT_BEGUN]
    assert fates(database, unknown) == [NOT_BEGUN, NOT_BEGUN]


def test_what_ended_in_earlier_batches_and_is_not_written_has_begun(database, maintenance):
    database.enqueue(handlers.work, count=6)
    state, batches = SharedState(), [claim(database, 2) for _ in range(3)]
    unwritten: list[int] = []
    for batch in batches:
        state.publish(batch, unwritten)
        assert all(state.begin(row, None) for row in range(2))
        state.end()
        state.clear()
        unwritten += [done.id for done in batch]
    maintenance.take_back(Child("w1", 1, state, time.monotonic()))
    maintenance.tick([])
    assert [fates(database, batch) for batch in batches] == 3 * [[ABANDONED, ABANDONED]]


def test_a_child_that_dies_while_it_tells_what_has_begun_has_told_it_before(database, monkeypatch):
    database.enqueue(handlers.work, count=3)
    [first], second, third = claim(database, 1), claim(database, 1), claim(database, 1)
    state = SharedState()
    state.publish(second, [first.id])
    state.begin(0, None)

    def die(target, values):
        target[: len(values)] = [0] * len(values)
        raise SystemExit

    monkeypatch.setattr(SharedState, "_write", staticmethod(die))
    with pytest.raises(SystemExit):
        state.publish(third, [first.id, second[0].id])
    assert sorted(state.begun()) == [first.id, second[0].id]


def test_when_too_many_have_ended_only_what_is_known_not_to_have_begun_is_given_back(database, maintenance):
    database.enqueue(handlers.work, count=4)
    known, other = claim(database, 2), claim(database, 2)
    child = child_running(known)
    child.state.publish(known, range(10**6, 10**6 + EARLIER_LIMIT + 1))
    maintenance.take_back(child)
    maintenance.tick([])
    assert fates(database, known + other) == [NOT_BEGUN, NOT_BEGUN, ABANDONED, ABANDONED]


def test_a_claim_that_commits_after_rows_were_taken_back_is_given_back_once_the_session_has_ended(
    database, maintenance
):
    database.enqueue(handlers.work, count=2)
    with psycopg.connect(database.url, autocommit=True) as session:
        assert presence.take(session, "w1")
        maintenance.take_back(child_running(claim(database, 1)))
        maintenance.tick([])
        late = claim(database, 1)
        maintenance.tick([])
        assert fates(database, late) == [("PROCESSING", 1)], "the session lives, and so may its claim"
    wait_until(lambda: not presence.states(["w1"], database.connection)["w1"].held)
    maintenance.tick([])
    assert fates(database, late) == [NOT_BEGUN]


def test_one_that_commits_while_rows_are_taken_back_costs_no_attempt(database, maintenance):
    database.enqueue(handlers.work, count=2)
    maintenance.take_back(child_running(known := claim(database, 1)))
    give_back = maintenance.pending[0]
    late = []
    maintenance.pending[0] = lambda connection: (give_back(connection), late.extend(claim(database, 1)))
    maintenance.tick([])
    assert fates(database, known + late) == [ABANDONED, NOT_BEGUN]


def test_a_locked_table_of_workers_does_not_keep_tasks_from_being_taken_back(database, maintenance):
    """The lock hides only the end of the dead session; what is known of the tasks can be written."""
    database.enqueue(handlers.work, count=2)
    batch = claim(database)
    with psycopg.connect(database.url) as migration:
        migration.execute("LOCK TABLE tasks_worker")
        maintenance.take_back(child_running(batch))
        maintenance.tick([])
        assert fates(database, batch) == [ABANDONED, NOT_BEGUN]


def test_after_an_outage_nobody_is_judged_before_all_had_time_to_come_back(database, maintenance):
    maintenance.tick([])
    maintenance.sweep_at = 0.0
    database.rows("SELECT pg_terminate_backend(%s)", maintenance.connection.info.backend_pid)

    def has_noticed():
        maintenance.tick([])
        return maintenance.connection is None

    wait_until(has_noticed)
    maintenance.sweep_at = maintenance.retry_at = 0.0
    maintenance.tick([])
    assert maintenance.connection is not None
    assert maintenance.sweep_at > time.monotonic() + 1


HELD_UP = """
SELECT clock_timestamp() - query_start > make_interval(secs => %s) FROM pg_stat_activity
WHERE pid = %s AND wait_event_type = 'Lock'
"""


@pytest.fixture
def stall(database, maintenance):
    """One tick of the maintenance, a statement of which another session holds up for longer than is usual."""

    def release(other):
        with psycopg.connect(database.url, autocommit=True) as asking, other:
            held_up = (STALL_SECONDS, maintenance.connection.info.backend_pid)
            wait_until(lambda: asking.execute(HELD_UP, held_up).fetchone() == (True,))

    def tick():
        maintenance.connection.execute("SET lock_timeout = 0")
        other = psycopg.connect(database.url)
        other.execute("LOCK TABLE tasks_worker")
        releasing = threading.Thread(target=release, args=(other,))
        releasing.start()
        maintenance.hurry()
        maintenance.tick([])
        releasing.join()

    maintenance.tick([])
    return tick


def test_after_a_statement_that_was_held_up_a_sweep_is_put_off_once(maintenance, stall):
    """An outage that this session has outlived may have ended those of others; but sweeps must go on."""
    maintenance.sweep_at = 0.0
    stall()
    assert maintenance.sweep_at > time.monotonic() + 1
    maintenance.sweep_at = 0.0
    stall()
    assert maintenance.sweep_at < time.monotonic() + 1.5 * maintenance.sweep_seconds
    assert not maintenance.is_sweep_put_off


REFUSE = """
CREATE FUNCTION test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
CREATE TRIGGER test_refuse BEFORE UPDATE ON tasks_task FOR EACH ROW WHEN (OLD.queue_name = 'poison')
EXECUTE FUNCTION test_refuse()
"""


def child_running_behind(earlier, batch):
    """A child `w1` that has begun the first task of its batch, and so many of others that are not written yet.

    Too many are not listed: then only what has not begun is known.
    """
    state = SharedState()
    state.publish(batch, range(-earlier, 0))
    state.begin(0, None)
    return Child("w1", 1, state, time.monotonic())


KNOWN = pytest.mark.parametrize("earlier", [0, EARLIER_LIMIT + 1], ids=["begun rows known", "unstarted rows known"])


@KNOWN
def test_a_locked_row_does_not_keep_the_others_from_being_given_back(database, maintenance, earlier, caplog):
    """Nor does the log tell of it each time that it is tried again."""
    running, *waiting = database.enqueue(handlers.work, count=20)
    maintenance.take_back(child_running_behind(earlier, claim(database, 20)))
    with psycopg.connect(database.url) as other:
        other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [waiting[7]])
        for _ in range(5):
            maintenance.tick([])
        assert maintenance.pending
        given_back = [task_id for task_id in waiting if database.task(task_id).status == "READY"]
        assert given_back == [task_id for task_id in waiting if task_id != waiting[7]]
    assert len([record for record in caplog.records if "a row is locked" in record.getMessage()]) == 1
    maintenance.tick([])
    assert not maintenance.pending
    assert {(database.task(task_id).status, database.task(task_id).attempt) for task_id in waiting} == {("READY", 0)}
    assert database.outcomes(running) == ["abandoned"]


@KNOWN
def test_a_row_that_the_database_refuses_is_left_to_recovery(database, maintenance, earlier):
    """It keeps nothing else from being written, by this supervisor or another."""
    running, *waiting = database.enqueue(handlers.work, count=10)
    [poison] = database.enqueue(handlers.work, queue="poison", priority=-1)
    maintenance.take_back(child_running_behind(earlier, claim(database, 20)))
    refuse_poison(database)
    maintenance.tick([])
    assert not maintenance.pending
    assert {database.task(task_id).status for task_id in waiting} == {"READY"}
    assert database.outcomes(running) == ["abandoned"]
    assert database.task(poison).status == "PROCESSING"


@pytest.mark.parametrize("killed_for", ["timeout", "cancel"])
def test_an_ending_that_the_database_refuses_is_left_to_recovery(database, maintenance, killed_for):
    [poison] = database.enqueue(handlers.work, queue="poison")
    maintenance.take_back(child_running(claim(database), killed_for=killed_for, doomed={(poison, 1)}))
    refuse_poison(database)
    maintenance.tick([])
    assert not maintenance.pending
    assert database.value("SELECT target FROM tasks_recoveryfailure") == f"task:{poison}"


def refuse_poison(database):
    """From now on no row of that queue can be changed."""
    database.connection.execute(REFUSE)
