"""A task on its last attempt, or a durable one, is claimed alone: nobody's death can end it before it has begun."""

import pytest
from django.db import connection

from tasks.queue import strategies
from tasks.queue.claim import Claimer
from tasks.queue.shortcut import CLAIM_BEHIND, Shortcut, behind_params
from tests.tasks import rows
from tests.tasks.claiming import ids

pytestmark = pytest.mark.django_db

DURABLE = "tests.tasks.handlers.durable"
LATER = float("inf")


@pytest.fixture(params=["skip_locked", "optimistic"])
def take(request):
    """Claims of one worker after another."""
    claimer = Claimer("w1", durable=[DURABLE])
    return lambda limit=10: ids(strategies.claim(connection, claimer, limit, request.param))


@pytest.fixture(params=[{"max_attempts": 1}, {"attempt": 4, "max_attempts": 5}, {"task_path": DURABLE}], ids=str)
def alone(request):
    return request.param


def test_a_batch_ends_before_it_and_it_is_taken_by_itself(take, alone):
    before, lone, after = rows.many(3), rows.ready(**alone).pk, rows.many(2)
    assert [take(), take(), take(), take()] == [before, [lone], after, []]


def test_so_is_each_of_several(take, alone):
    first, second = rows.ready(**alone).pk, rows.ready(**alone).pk
    assert [take(), take(), take()] == [[first], [second], []]


def test_the_head_of_a_key_is_no_exception(take, alone):
    before, lone = rows.many(2), rows.ready(ordering_key="k", **alone).pk
    assert [take(), take()] == [before, [lone]]


def test_one_that_has_attempts_left_is_not_alone(take):
    expected = [*rows.many(2), rows.ready(attempt=3, max_attempts=5).pk]
    assert take() == expected


def test_what_is_not_taken_is_left_as_it_was(take, alone):
    rows.many(1)
    lone = rows.ready(**alone)
    take()
    version = lone.version
    lone.refresh_from_db()
    assert (lone.status, lone.version, lone.claimed_by) == ("READY", version, None)


def following(is_ahead):
    """The ids that a claim behind the last task takes."""
    claimer = Claimer("w1", durable=[DURABLE])
    front = Shortcut({("default", 0): ("-infinity", 0)}, LATER)
    with connection.cursor() as cursor:
        cursor.execute(CLAIM_BEHIND, behind_params(claimer, front, 10, may_be_alone=not is_ahead))
        return [row[1] for row in cursor.fetchall()]


def test_it_is_not_claimed_ahead_of_the_task_in_hand(alone):
    lone = rows.ready(**alone).pk
    assert following(is_ahead=True) == []
    assert following(is_ahead=False) == [lone]


def test_what_stands_before_it_is_claimed_ahead(alone):
    before = rows.many(2)
    rows.ready(**alone)
    assert following(is_ahead=True) == before
