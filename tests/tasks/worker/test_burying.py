"""What a supervisor writes of its children late, after a death or an outage: races that no process loses on demand."""

import math
import threading
import time

import psycopg
import pytest

from tasks.queue import presence, strategies
from tasks.queue import release as releases
from tasks.queue.claim import Claimer
from tasks.worker.maintenance import STALL_SECONDS, Keeper
from tasks.worker.shared_state import EARLIER_LIMIT, SharedState
from tasks.worker.supervisor import Process
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until


@pytest.fixture
def keeper(settings, database):
    """A supervisor's keeper on the test's database."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    keeper = Keeper()
    keeper.sweep_at = math.inf  # `w1` has no presence
    yield keeper
    keeper.close()


def claim(database, count=10):
    """What worker `w1` claims now."""
    return strategies.claim(database.connection, Claimer("w1"), count)


def child_running(batch, **attributes):
    """A child `w1` that has begun the first task of its batch."""
    state = SharedState()
    state.publish(batch)
    state.begin(0, None)
    return Process("w1", 1, state, time.monotonic(), **attributes)


@pytest.mark.parametrize(
    ("killed_for", "outcome", "status"), [("timeout", "timed_out", "READY"), ("cancel", "released", "CANCELLED")]
)
def test_what_was_meant_ends_for_the_reason_of_the_kill(database, keeper, killed_for, outcome, status):
    [task_id] = database.enqueue(handlers.work)
    keeper.bury(child_running(claim(database), killed_for=killed_for, doomed=(task_id, 1)))
    keeper.tick([])
    assert database.outcomes(task_id) == [outcome]
    assert database.task(task_id).status == status


@pytest.mark.parametrize("killed_for", ["timeout", "cancel"])
def test_what_began_before_the_signal_arrived_is_given_back(database, keeper, killed_for):
    [task_id] = database.enqueue(handlers.work)
    keeper.bury(child_running(claim(database), killed_for=killed_for, doomed=(task_id - 1, 1)))
    keeper.tick([])
    task = database.task(task_id)
    assert database.outcomes(task_id) == ["released"]
    assert (task.status, task.attempt, task.max_attempts) == ("READY", 1, 6)


def test_a_late_release_does_not_take_what_was_claimed_again(database, keeper):
    """The child gave its rows back itself and claimed them again before the supervisor could write."""
    [first, second] = database.enqueue(handlers.work, count=2)
    batch = claim(database)
    keeper.release("w1", child_running(batch).state.take_unstarted())
    releases.release(database.connection, "w1", [(batch[1].id, batch[1].started_at)])
    assert [again.id for again in claim(database)] == [second]
    keeper.tick([])
    assert {row.status for row in (database.task(first), database.task(second))} == {"PROCESSING"}


def test_what_a_child_has_not_begun_is_given_back_once(database, keeper):
    [first, second] = database.enqueue(handlers.work, count=2)
    state = child_running(claim(database)).state
    keeper.release("w1", state.take_unstarted())
    keeper.release("w1", state.take_unstarted())
    keeper.tick([])
    assert database.task(first).status == "PROCESSING"
    task = database.task(second)
    assert (task.status, task.attempt, task.version) == ("READY", 0, 3)
    assert not state.begin(1, None), "the child must not begin what was taken from it"


def fates(database, batch):
    """Status, attempts that are spent, and what became of each."""
    rows = [database.task(claim.id) for claim in batch]
    return [(row.status, row.attempt, *database.outcomes(row.id)) for row in rows]


NOT_BEGUN, ABANDONED = ("READY", 0), ("READY", 1, "abandoned")


def test_f02_a_claim_whose_answer_died_with_the_child_costs_no_attempt(database, keeper):
    database.enqueue(handlers.work, count=4)
    known, unknown = claim(database, 2), claim(database, 2)
    keeper.bury(child_running(known))
    keeper.tick([])
    assert fates(database, known) == [ABANDONED, NOT_BEGUN]
    assert fates(database, unknown) == [NOT_BEGUN, NOT_BEGUN]


def test_what_ended_in_earlier_batches_and_is_not_written_has_begun(database, keeper):
    database.enqueue(handlers.work, count=6)
    state, batches = SharedState(), [claim(database, 2) for _ in range(3)]
    unwritten: list[int] = []
    for batch in batches:
        state.publish(batch, unwritten)
        assert state.begin(1, None)
        state.end()
        state.clear()
        unwritten += [done.id for done in batch]
    keeper.bury(Process("w1", 1, state, time.monotonic()))
    keeper.tick([])
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


def test_when_too_many_have_ended_only_what_is_known_not_to_have_begun_is_given_back(database, keeper):
    database.enqueue(handlers.work, count=4)
    known, other = claim(database, 2), claim(database, 2)
    child = child_running(known)
    child.state.publish(known, range(10**6, 10**6 + EARLIER_LIMIT + 1))
    keeper.bury(child)
    keeper.tick([])
    assert fates(database, known + other) == [NOT_BEGUN, NOT_BEGUN, ABANDONED, ABANDONED]


def test_a_claim_that_commits_after_the_burial_is_given_back_once_the_session_has_ended(database, keeper):
    database.enqueue(handlers.work, count=2)
    with psycopg.connect(database.url, autocommit=True) as session:
        assert presence.take(session, "w1")
        keeper.bury(child_running(claim(database, 1)))
        keeper.tick([])
        late = claim(database, 1)
        keeper.tick([])
        assert fates(database, late) == [("PROCESSING", 1)], "the session lives, and so may its claim"
    wait_until(lambda: not presence.states(["w1"], database.connection)["w1"].held)
    keeper.tick([])
    assert fates(database, late) == [NOT_BEGUN]


def test_one_that_commits_in_the_middle_of_the_burial_costs_no_attempt(database, keeper):
    database.enqueue(handlers.work, count=2)
    keeper.bury(child_running(known := claim(database, 1)))
    give_back = keeper.pending[0]
    late = []
    keeper.pending[0] = lambda connection: (give_back(connection), late.extend(claim(database, 1)))
    keeper.tick([])
    assert fates(database, known + late) == [ABANDONED, NOT_BEGUN]


def test_after_an_outage_nobody_is_judged_before_all_had_time_to_come_back(database, keeper):
    keeper.tick([])
    keeper.sweep_at = 0.0
    database.rows("SELECT pg_terminate_backend(%s)", keeper.connection.info.backend_pid)

    def has_noticed():
        keeper.tick([])
        return keeper.connection is None

    wait_until(has_noticed)
    keeper.sweep_at = keeper.retry_at = 0.0
    keeper.tick([])
    assert keeper.connection is not None
    assert keeper.sweep_at > time.monotonic() + 1


HELD_UP = """
SELECT clock_timestamp() - query_start > make_interval(secs => %s) FROM pg_stat_activity
WHERE pid = %s AND wait_event_type = 'Lock'
"""


@pytest.fixture
def stall(database, keeper):
    """One tick of the keeper, a statement of which another session holds up for longer than is usual."""

    def release(other):
        with psycopg.connect(database.url, autocommit=True) as asking, other:
            held_up = (STALL_SECONDS, keeper.connection.info.backend_pid)
            wait_until(lambda: asking.execute(HELD_UP, held_up).fetchone() == (True,))

    def tick():
        keeper.connection.execute("SET lock_timeout = 0")
        other = psycopg.connect(database.url)
        other.execute("LOCK TABLE tasks_worker")
        releasing = threading.Thread(target=release, args=(other,))
        releasing.start()
        keeper.hurry()
        keeper.tick([])
        releasing.join()

    keeper.tick([])
    return tick


def test_after_a_statement_that_was_held_up_a_sweep_is_put_off_once(keeper, stall):
    """An outage that this session has outlived may have ended those of others; but sweeps must go on."""
    keeper.sweep_at = 0.0
    stall()
    assert keeper.sweep_at > time.monotonic() + 1
    keeper.sweep_at = 0.0
    stall()
    assert keeper.sweep_at < time.monotonic() + 1.5 * keeper.sweep_seconds
    assert not keeper.is_sweep_put_off


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
    return Process("w1", 1, state, time.monotonic())


KNOWN = pytest.mark.parametrize("earlier", [0, EARLIER_LIMIT + 1], ids=["begun rows known", "unstarted rows known"])


@KNOWN
def test_a_locked_row_does_not_keep_the_others_from_being_given_back(database, keeper, earlier, caplog):
    """Nor does the log tell of it each time that it is tried again."""
    running, *waiting = database.enqueue(handlers.work, count=20)
    keeper.bury(child_running_behind(earlier, claim(database, 20)))
    with psycopg.connect(database.url) as other:
        other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [waiting[7]])
        for _ in range(5):
            keeper.tick([])
        assert keeper.pending
        given_back = [task_id for task_id in waiting if database.task(task_id).status == "READY"]
        assert given_back == [task_id for task_id in waiting if task_id != waiting[7]]
    assert len([record for record in caplog.records if "a row is locked" in record.getMessage()]) == 1
    keeper.tick([])
    assert not keeper.pending
    assert {(database.task(task_id).status, database.task(task_id).attempt) for task_id in waiting} == {("READY", 0)}
    assert database.outcomes(running) == ["abandoned"]


@KNOWN
def test_a_row_that_the_database_refuses_is_left_to_recovery(database, keeper, earlier):
    """It keeps nothing else from being written, by this supervisor or another."""
    running, *waiting = database.enqueue(handlers.work, count=10)
    [poison] = database.enqueue(handlers.work, queue="poison", priority=-1)
    keeper.bury(child_running_behind(earlier, claim(database, 20)))
    refuse_poison(database)
    keeper.tick([])
    assert not keeper.pending
    assert {database.task(task_id).status for task_id in waiting} == {"READY"}
    assert database.outcomes(running) == ["abandoned"]
    assert database.task(poison).status == "PROCESSING"


@pytest.mark.parametrize("killed_for", ["timeout", "cancel"])
def test_an_ending_that_the_database_refuses_is_left_to_recovery(database, keeper, killed_for):
    [poison] = database.enqueue(handlers.work, queue="poison")
    keeper.bury(child_running(claim(database), killed_for=killed_for, doomed=(poison, 1)))
    refuse_poison(database)
    keeper.tick([])
    assert not keeper.pending
    assert database.value("SELECT target FROM tasks_recoveryfailure") == f"task:{poison}"


def refuse_poison(database):
    """From now on no row of that queue can be changed."""
    database.connection.execute(REFUSE)
