"""The database goes away and comes back, in every way it can: workers live on, and nobody takes live work from them."""

import functools
import signal

import pytest

from tasks.queue import presence, recovery
from tests import outages
from tests.chaos.gated import tasks as gated
from tests.processes import HANDLERS_APP
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

TASKS = 300
OUTAGES = {
    "restart": outages.restart,
    "crashed backend": outages.crash_one_backend,
    "terminated backends": outages.terminate_every_backend,
    "timed out statements": outages.time_out_statements,
    "read-only": functools.partial(outages.read_only, seconds=1.5),
}
# A handler that writes is in the middle of it.
IN_A_TRANSACTION = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'
"""


@pytest.fixture
def database(breakable_database):
    return breakable_database


def convicted_by_two_looks(database):
    """Who is dead to the first that looks at everybody, and looks again."""
    first = recovery.sweep(database.connection)
    database.rows("SELECT pg_sleep(%s)", presence.SECOND_LOOK_SECONDS + 0.05)
    return first.dead + recovery.sweep(database.connection).dead


def assert_nobody_was_taken_for_dead(database, workers):
    """The same processes under the same ids, and no attempt that a sweep ended."""
    rows = database.rows("SELECT pid FROM tasks_worker WHERE stopped_at IS NULL")
    assert {row.pid for row in rows} == {pid for worker in workers for pid in worker.children()}
    assert database.rows("SELECT * FROM tasks_worker WHERE stopped_at IS NOT NULL") == []
    assert database.rows("SELECT * FROM tasks_attempt WHERE outcome = 'abandoned'") == []


@pytest.mark.parametrize("outage", OUTAGES)
def test_f15_an_outage_under_load_costs_no_live_work(breakable_server, database, ledger, start_worker, outage):
    """Not one effect is repeated: what had ended waits in the workers until it can be written."""
    workers = [start_worker("--concurrency", 2) for _ in range(2)]
    tasks: list[int] = []

    def it_struck_before_the_work_was_over() -> bool:
        begun = len(tasks) + TASKS / 5
        tasks.extend(database.enqueue(handlers.work, 0.01, count=TASKS))
        wait_until(lambda: ledger.count() > begun)
        OUTAGES[outage](breakable_server, database)
        return ledger.count() < len(tasks)

    wait_until(it_struck_before_the_work_was_over, seconds=120)
    assert database.wait_until_finished() == {"COMPLETED": len(tasks)}
    assert ledger.count() == len(tasks), "an effect was repeated"
    assert {effect.pid for effect in ledger.effects()} == {pid for worker in workers for pid in worker.children()}
    assert database.rows("SELECT * FROM tasks_attempt") == []
    assert_nobody_was_taken_for_dead(database, workers)
    assert [worker.stop() for worker in workers] == [0, 0]


@pytest.mark.parametrize("outage", ["restart", "crashed backend"])
def test_f15_who_cannot_come_back_at_once_keeps_its_task(breakable_server, database, ledger, start_worker, outage):
    """Its presence was lost with the server's sessions, so that its absence proves nothing: the lease decides."""
    worker = start_worker()
    [task_id] = database.enqueue(handlers.work, 0.5)
    wait_until(lambda: ledger.effects(task_id))
    worker.send_all(signal.SIGSTOP)
    OUTAGES[outage](breakable_server, database)
    assert convicted_by_two_looks(database) == []
    worker.send_all(signal.SIGCONT)
    assert database.wait_for(task_id, "COMPLETED").attempt == 1
    assert ledger.count() == 1
    assert_nobody_was_taken_for_dead(database, [worker])


def test_f17_a_server_that_takes_no_writes_costs_nobody_its_presence(breakable_server, database, start_worker):
    """Workers try to connect again ever more rarely, and are to be found alive between two attempts."""
    worker = start_worker("--concurrency", 2)
    wait_until(lambda: database.value("SELECT count(*) FROM tasks_worker WHERE presence_epoch IS NOT NULL") == 2)
    outages.read_only(breakable_server, database, seconds=3.5)
    assert convicted_by_two_looks(database) == []
    [task_id] = database.enqueue(handlers.work)
    database.wait_for(task_id, "COMPLETED")
    assert_nobody_was_taken_for_dead(database, [worker])


@pytest.mark.parametrize("outage", ["restart", "terminated backends"])
def test_a_handler_that_lost_its_own_connection_costs_an_attempt_and_no_process(
    breakable_server, database, ledger, start_worker, outage
):
    database.enqueue(handlers.write_in_transaction, 0.3, count=20)
    worker = start_worker("--concurrency", 2)
    wait_until(lambda: ledger.count() > 4 and database.value(IN_A_TRANSACTION))
    OUTAGES[outage](breakable_server, database)
    assert database.wait_until_finished() == {"COMPLETED": 20}
    failed = database.rows("SELECT outcome, exception_class FROM tasks_attempt")
    assert set(failed) == {("failed", "django.db.utils.OperationalError")}
    assert len(failed) <= 4, "more tasks failed than were running, and one more each on a connection that was gone"
    assert_nobody_was_taken_for_dead(database, [worker])


def test_f17_no_worker_is_judged_by_a_lease_that_nobody_could_renew(breakable_server, database, ledger, start_worker):
    """Read-only for longer than the lease: whoever writes first again finds every heartbeat too old."""
    running = database.enqueue(handlers.work, 9, count=2)
    workers = [start_worker(ROWLOCK_LEASE_SECONDS=5) for _ in range(2)]
    wait_until(lambda: ledger.count() == 2)
    outages.read_only(breakable_server, database, seconds=6)
    assert database.wait_until_finished() == {"COMPLETED": 2}
    assert [len(ledger.effects(task_id)) for task_id in running] == [1, 1]
    assert_nobody_was_taken_for_dead(database, workers)


@pytest.mark.parametrize("task", [handlers.work, gated.wait_at_the_gate], ids=["idle", "busy"])
def test_f05_presence_is_taken_again_under_the_same_id(database, ledger, start_worker, task):
    """While its task goes on, too: that one ends when the presence is there."""
    worker = start_worker(ROWLOCK_APPS=f"{HANDLERS_APP},{gated.APP}")
    with gated.shut_gate(ledger.url):
        [task_id] = database.enqueue(task)
        wait_until(lambda: ledger.effects(task_id))
        [worker_id] = [row.id for row in database.rows("SELECT id FROM tasks_worker")]
        before = database.value(PRESENCE, worker_id)
        database.value("SELECT pg_terminate_backend(%s)", before)

        def another_session_holds_it():
            return [row.pid for row in database.rows(PRESENCE, worker_id) if row.pid != before]

        wait_until(another_session_holds_it)
    assert presence.states(connection=database.connection)[worker_id].is_alive
    assert database.wait_for(task_id, "COMPLETED").attempt == 1
    assert_nobody_was_taken_for_dead(database, [worker])


PRESENCE = """
SELECT pid FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objid::bigint = (hashtext(%s)::bigint & 4294967295)
    AND classid::bigint = (hashtext('rowlock:presence:' || current_schema())::bigint & 4294967295)
"""


def test_statistics_that_are_reset_do_not_make_recovery_wait_for_the_lease(database, ledger, start_worker):
    """They look like a restart, after which a worker that is gone proves nothing."""
    [task_id] = database.enqueue(handlers.work, 600.0, 0.0)
    dying = start_worker(ROWLOCK_LEASE_SECONDS=600)
    wait_until(lambda: ledger.effects(task_id))
    start_worker(ROWLOCK_LEASE_SECONDS=600)
    wait_until(lambda: len(alive(database)) == 2)
    before = {state.epoch for state in alive(database)}
    database.rows("SELECT pg_stat_reset_shared('bgwriter')")
    wait_until(lambda: {state.presence_epoch for state in alive(database)}.isdisjoint(before))
    dying.send_all(signal.SIGKILL)
    assert database.wait_for(task_id, "COMPLETED").attempt == 2


def alive(database) -> list[presence.WorkerState]:
    """The workers that hold their presence."""
    return [state for state in presence.states(connection=database.connection).values() if state.held]
