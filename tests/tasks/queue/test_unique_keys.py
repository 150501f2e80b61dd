"""Unique keys through a task's life: what comes back is never lost, and no batch stops at a key that is taken."""

import time

import pytest
from django.db import connection

from tasks.models import Task
from tasks.queue import completion, recovery, release
from tasks.queue.claim import Claim
from tasks.queue.completion import Ending, Failure
from tests.sessions import session
from tests.tasks import rows
from tests.tasks.claiming import claim

pytestmark = pytest.mark.django_db
BROKEN = Failure("builtins.ValueError", "Traceback …", retry_seconds=0)


def state(task_id: int) -> tuple[str, str | None]:
    return Task.objects.values_list("status", "unique_while").get(pk=task_id)


def recover(claims: list[Claim]) -> None:
    rows.dead_worker("w1")
    recovery.recover(connection)


def fail(claims: list[Claim]) -> None:
    now = time.monotonic()
    endings = [Ending(one.id, one.version, one.attempt, now, now, failure=BROKEN) for one in claims]
    assert completion.flush(connection, "w1", endings).failed == len(claims)


def give_back(claims: list[Claim]) -> None:
    release.release(connection, "w1", [(one.id, one.claimed_at()) for one in claims])


def give_back_unknown(claims: list[Claim]) -> None:
    release.release_unknown(connection, "w1", [])


def interrupt(claims: list[Claim]) -> None:
    for one in claims:
        release.interrupt(connection, "w1", one.id, one.attempt)


WAYS_BACK = [recover, fail, give_back, give_back_unknown, interrupt]


@pytest.fixture
def claims() -> list[Claim]:
    """Three claimed tasks; the key of the second is unique while queued."""
    rows.ready()
    rows.ready(unique_key="k", unique_while="q")
    rows.ready(unique_key="other", unique_while="a")
    return claim(3)


@pytest.mark.parametrize("come_back", WAYS_BACK)
def test_a_task_that_comes_back_is_not_lost_when_another_has_its_key(come_back, claims):
    other = rows.ready(unique_key="k", unique_while="q")
    come_back(claims)
    assert [state(one.id) for one in claims] == [("READY", None), ("READY", "b"), ("READY", "a")]
    assert state(other.pk) == ("READY", "q")


@pytest.mark.parametrize("come_back", WAYS_BACK)
def test_it_gives_its_key_up_even_if_no_other_has_it(come_back, claims):
    come_back(claims)
    assert state(claims[1].id) == ("READY", "b")
    rows.ready(unique_key="k", unique_while="q")
    assert len(claim(4)) == 4


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("come_back", WAYS_BACK)
def test_an_enqueuer_s_open_transaction_holds_up_no_way_back(come_back, claims):
    with session() as enqueuer, connection.cursor() as cursor:
        enqueuer.execute("SELECT rowlock_enqueue('any.task', unique_key => 'k', unique_while => 'queued')")
        cursor.execute("SET lock_timeout = '50ms'")
        try:
            come_back(claims)
        finally:
            cursor.execute("RESET lock_timeout")
        enqueuer.commit()
    assert state(claims[1].id) == ("READY", "b")
    assert Task.objects.filter(unique_key="k", unique_while="q").count() == 1


@pytest.mark.parametrize("come_back", WAYS_BACK)
def test_an_active_key_stays_with_its_task(come_back, claims):
    come_back(claims)
    with connection.cursor() as cursor:
        cursor.execute("SELECT rowlock_enqueue('any.task', unique_key => 'other')")
        assert cursor.fetchone() == (claims[2].id,)


def test_raw_sql_gives_it_up_too():
    task = rows.processing("w1", unique_key="k", unique_while="q")
    rows.ready(unique_key="k", unique_while="q")
    Task.objects.filter(pk=task.pk).update(status="READY", claimed_by=None)
    assert state(task.pk) == ("READY", "b")


def test_a_claim_keeps_the_letter():
    """The row says how long it had its key."""
    task = rows.ready(unique_key="k", unique_while="q")
    claim(1)
    assert state(task.pk) == ("PROCESSING", "q")
