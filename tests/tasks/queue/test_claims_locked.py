"""A claim waits for nobody: rows that another session holds are passed over, and no claim holds up another."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from tasks.models import Task
from tasks.support.database import connect_directly
from tests.sessions import session, wait_until_blocked
from tests.tasks import rows
from tests.tasks.claiming import STRATEGIES, claim, ids

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker_session():
    """A worker's own session: a wait for a lock ends in an error after a second."""
    with closing(connect_directly("rowlock:test")) as conn:
        yield conn


@pytest.fixture(params=STRATEGIES)
def claim_some(request, worker_session):
    return partial(claim, strategy=request.param, connection=worker_session)


@pytest.mark.parametrize("clause", ["FOR UPDATE", "FOR NO KEY UPDATE", "FOR SHARE"])
@pytest.mark.parametrize("key", [None, "a"])
def test_a_locked_row_is_passed_over(claim_some, clause, key):
    held, free = rows.ready(ordering_key=key), rows.ready()
    with session() as other:
        other.execute(f"SELECT FROM tasks_task WHERE id = %s {clause}", [held.pk])
        assert ids(claim_some()) == [free.pk]
        other.rollback()
        assert ids(claim_some()) == [held.pk]


@pytest.mark.parametrize("limit", [1, 10])
def test_a_locked_head_of_the_line_however_long_hides_nothing(claim_some, limit):
    rows.many(200)
    last = rows.ready()
    with session() as other:
        other.execute("SELECT FROM tasks_task WHERE id < %s FOR UPDATE", [last.pk])
        assert ids(claim_some(limit)) == [last.pk]


def test_when_everything_is_locked_the_claim_is_empty(claim_some):
    rows.many(30)
    rows.ready(ordering_key="k")
    with session() as other:
        other.execute("SELECT FROM tasks_task FOR UPDATE")
        assert claim_some() == []


@pytest.mark.parametrize("write", ["UPDATE tasks_task SET priority = 9", "DELETE FROM tasks_task"])
def test_a_row_that_somebody_is_changing_is_passed_over(claim_some, write):
    rows.ready()
    with session() as other:
        other.execute(write)
        assert claim_some() == []


def test_a_claim_that_has_not_committed_holds_up_nobody(claim_some):
    tasks = [rows.ready(), rows.ready(ordering_key="k"), rows.ready(), rows.ready(ordering_key="l")]
    with session() as other, other.transaction():
        first = claim(2, connection=other)
        second = claim_some(10, worker_id="w2") + claim_some(10, worker_id="w2")
        assert ids(first) == ids(tasks[:2])
        assert ids(second) == ids(tasks[2:])


def test_a_queue_that_is_being_paused_holds_up_nobody(claim_some):
    task = rows.ready()
    with session() as other:
        other.execute("INSERT INTO tasks_queue (name, paused) VALUES ('default', true)")
        assert ids(claim_some()) == [task.pk]


def test_the_optimistic_claim_passes_over_what_another_is_about_to_take(django_assert_max_num_queries):
    """A round trip for each of many locked rows left it next to nothing beside other workers."""
    everything = rows.many(600)
    with session() as other, django_assert_max_num_queries(30):
        other.execute("SELECT FROM tasks_task ORDER BY id LIMIT 590 FOR UPDATE")
        assert ids(claim(1, strategy="optimistic")) == everything[590:591]


def test_the_optimistic_claim_keeps_no_row_locked_while_it_takes_the_next(worker_session):
    """Else two of them, each with its own order of queues, would wait for each other."""
    first, second, third = rows.ready(), rows.ready(ordering_key="k"), rows.ready(ordering_key="k")
    with session() as other, ThreadPoolExecutor() as pool:
        other.execute("UPDATE tasks_task SET status = 'PROCESSING', claimed_by = 'w9' WHERE id = %s", [third.pk])
        taken = pool.submit(claim, strategy="optimistic", connection=worker_session)
        wait_until_blocked(worker_session.info.backend_pid)
        assert ids(Task.objects.processing()) == [first.pk]
        other.rollback()
    assert ids(taken.result()) == ids([first, second])


@pytest.mark.parametrize("limit", [1, 7])
@pytest.mark.parametrize("plans", [None, "enable_indexscan", "enable_indexonlyscan"])
def test_f04_a_claim_locks_what_it_takes_and_nothing_else(worker_session, limit, plans):
    """Whatever plan: a row that is locked and then left stays out of everybody's reach until the commit."""
    everything = set(rows.many(40)) | {rows.ready(ordering_key=f"k{number}").pk for number in range(10)}
    if plans:
        worker_session.execute(f"SET {plans} = off")
    with worker_session.transaction(), session() as other:
        taken = set(ids(claim(limit, connection=worker_session)))
        free = other.execute("SELECT id FROM tasks_task FOR UPDATE SKIP LOCKED").fetchall()
        assert {task_id for (task_id,) in free} == everything - taken
    assert len(taken) == limit
