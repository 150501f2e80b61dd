"""What has ended is written by the server while the next tasks run; what goes wrong with it is flushed again."""

import math
import signal
import time
from dataclasses import replace

import psycopg
import pytest

from tasks.queue import strategies
from tasks.queue.claim import Claimer
from tasks.queue.completion import Ending
from tasks.support.database import WORKER_SESSION
from tasks.worker.complete import ALONE_SECONDS, SEND_FROM, Completer
from tasks.worker.shared_state import SharedState
from tests.outages import terminate_every_backend
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

ROWS = 2 * SEND_FROM
LARGEST_BATCH = strategies.STRATEGIES["skip_locked"].max_batch
SESSIONS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'rowlock:worker:%%'
"""
SUMMED = "SELECT coalesce(sum(completed), 0)::int FROM tasks_throughput"


@pytest.fixture
def session(database):
    with psycopg.connect(database.url, autocommit=True, options=WORKER_SESSION) as connection:
        yield connection


@pytest.fixture
def state():
    return SharedState()


@pytest.fixture
def completer(state, database, settings):
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    completer = Completer("w1", state)
    yield completer
    completer.close()


@pytest.fixture
def endings(database, session):
    """Claimed tasks that have ended well."""
    database.enqueue(handlers.quick, count=ROWS)
    now = time.monotonic()
    claimed = strategies.claim(session, Claimer("w1"), ROWS)
    return [Ending(claim.id, claim.version, claim.attempt, now, now) for claim in claimed]


def fill(completer, endings):
    for ending in endings:
        completer.add(ending)


def number_completed(database):
    return database.statuses()["COMPLETED"]


def test_the_server_writes_before_the_answer_is_read(database, session, state, completer, endings):
    fill(completer, endings)
    assert completer.send()
    wait_until(lambda: number_completed(database) == ROWS)
    assert len(completer) == ROWS, "what is not known to be written is held"
    completer.read_answer()
    assert (len(completer), state.completed) == (0, ROWS)


def test_the_sums_are_written_with_the_next_flush(database, session, completer, endings):
    fill(completer, endings[:SEND_FROM])
    assert completer.send()
    completer.read_answer()
    assert database.value(SUMMED) == 0
    fill(completer, endings[SEND_FROM:])
    assert completer.send()
    completer.read_answer()
    assert database.value(SUMMED) == SEND_FROM
    completer.flush(session)
    assert database.value(SUMMED) == ROWS
    completer.flush(session)
    assert database.value(SUMMED) == ROWS


def test_few_and_failed_endings_are_not_sent(completer, endings):
    fill(completer, endings[: SEND_FROM - 1])
    assert not completer.may_send()
    completer.add(replace(endings[-1], failure=object()))
    assert not completer.may_send()


def test_a_row_that_was_edited_meanwhile_is_completed_by_a_flush(database, session, completer, endings):
    edited = endings[5].id
    database.rows("UPDATE tasks_task SET priority = 9 WHERE id = %s", edited)
    fill(completer, endings)
    assert completer.send()
    completer.read_answer()
    assert (completer.ids(), completer.may_send()) == ({edited}, False)
    assert completer.flush(session).rebased == 1
    assert number_completed(database) == ROWS == database.value(SUMMED)


def test_a_row_that_was_taken_meanwhile_is_refused_by_a_flush(database, session, completer, endings):
    database.rows("UPDATE tasks_task SET claimed_by = 'w2' WHERE id = %s", endings[5].id)
    fill(completer, endings)
    assert completer.send()
    assert completer.flush(session).refused == [endings[5].id]
    assert database.task(endings[5].id).claimed_by == "w2"


@pytest.mark.parametrize("trouble", ["it cannot be stored", "somebody holds a row"])
def test_what_could_not_be_written_is_written_around_the_trouble(database, session, completer, endings, trouble):
    ids = {ending.id for ending in endings}
    if trouble == "it cannot be stored":
        endings[5] = replace(endings[5], return_value='"\\u0000"')
    with psycopg.connect(database.url) as other:
        if trouble == "somebody holds a row":
            other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [endings[5].id])
        fill(completer, endings)
        assert completer.send()
        completer.read_answer()
        assert (completer.ids(), completer.may_send(), number_completed(database)) == (ids, False, 0)
        completer.flush(session)
        assert number_completed(database) == ROWS - 1
    completer.flush(session)
    assert database.statuses()["PROCESSING"] == len(completer) == 0


def test_what_is_under_way_is_sent_once(database, completer, endings):
    """And is not counted among what has ended since."""
    fill(completer, endings[:SEND_FROM])
    assert completer.send()
    assert not completer.may_send()
    assert not completer.send()
    wait_until(lambda: number_completed(database) == SEND_FROM)


def test_what_is_on_its_way_is_not_due_again(completer, endings, monkeypatch):
    """However long ago its task ended: a flush would wait for an answer that comes by itself."""
    monkeypatch.setattr("tasks.worker.complete.FLUSH_SECONDS", 60.0)
    long_ago = time.monotonic() - 61.0
    fill(completer, [replace(ending, finished=long_ago) for ending in endings])
    assert completer.is_due()
    assert completer.send()
    assert not completer.is_due()
    completer._sent_at -= 61.0  # but an answer is not waited for without end
    assert completer.is_due()
    completer.read_answer()
    assert not completer.is_due()


def test_a_flush_reads_first_what_became_of_what_was_sent(database, session, state, completer, endings):
    fill(completer, endings)
    assert completer.send()
    completer.flush(session)
    completer.read_answer()
    assert state.completed == ROWS == database.value(SUMMED)


def test_where_no_second_session_is_to_be_had_it_is_flushed(database, session, completer, endings, settings):
    began = time.monotonic()
    fill(completer, endings)
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": "postgresql://127.0.0.1:1/nobody-listens"}
    assert not completer.send()
    assert completer.alone_until >= began + ALONE_SECONDS
    completer.flush(session)
    assert number_completed(database) == ROWS


def test_a_session_that_was_refused_is_asked_for_again_later(completer, endings):
    fill(completer, endings)
    completer.alone_until = math.inf
    assert not completer.may_send()
    completer.alone_until = time.monotonic()
    assert completer.may_send()


def test_a_worker_has_a_second_session_as_long_as_there_is_much_to_do(database, start_worker):
    tasks = 30_000
    database.fill(handlers.quick, tasks)
    start_worker()
    wait_until(lambda: database.value(SESSIONS) >= 2)
    wait_until(lambda: database.value(SESSIONS) == 1)
    assert number_completed(database) == tasks
    database.enqueue(handlers.quick, count=SEND_FROM)
    wait_until(lambda: number_completed(database) == tasks + SEND_FROM)
    assert database.value(SESSIONS) == 1


def test_a_lost_session_costs_no_task_and_no_attempt(database, ledger, start_worker):
    tasks = 20_000
    database.fill(handlers.quick, tasks)
    worker = start_worker()
    wait_until(lambda: number_completed(database) > tasks / 10)
    terminate_every_backend(None, database)
    assert database.wait_until_finished() == {"COMPLETED": tasks}
    assert database.rows("SELECT * FROM tasks_attempt") == []
    assert worker.stop() == 0
    assert worker.report() == {"claimed": tasks, "completed": tasks, "failed": 0, "refused": 0}


def test_a_kill_while_two_sessions_are_at_work_costs_nothing_but_what_was_in_hand(database, start_worker):
    tasks = 40_000
    database.fill(handlers.quick, tasks)
    killed = start_worker()
    wait_until(lambda: database.value(SESSIONS) >= 2)
    killed.send_all(signal.SIGKILL)
    assert number_completed(database) < tasks
    start_worker()
    assert database.wait_until_finished() == {"COMPLETED": tasks}
    outcomes = database.rows("SELECT outcome, count(*) FROM tasks_attempt GROUP BY outcome")
    assert all(outcome == "abandoned" and number <= 3 * LARGEST_BATCH for outcome, number in outcomes)
    assert database.rows("SELECT * FROM tasks_refusedwrite") == []


def test_a_write_whose_answer_was_lost_is_not_refused_when_it_is_repeated(database, session, state, completer, endings):
    fill(completer, endings)
    assert completer.send()
    wait_until(lambda: number_completed(database) == ROWS)
    completer.second_session.pgconn.finish()
    flushed = completer.flush(session)
    assert (flushed.completed, flushed.refused, state.completed) == (ROWS, [], ROWS)


def test_an_orderly_worker_leaves_no_sum_unwritten(database, start_worker):
    tasks = 5000
    database.fill(handlers.quick, tasks)
    worker = start_worker("--burst")
    assert worker.wait() == 0
    assert worker.report()["completed"] == tasks == database.value(SUMMED)
