"""Keys of which none was due are looked at again a moment later, or at once where nothing else is due."""

import math
import time
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import Task
from tasks.queue import strategies
from tasks.queue.claim import Claimer
from tests.tasks import rows
from tests.tasks.claiming import STRATEGIES, ids

pytestmark = [pytest.mark.django_db, pytest.mark.parametrize("strategy", STRATEGIES)]


@pytest.fixture
def held():
    """The head of a key that waits for its time, before tasks without a key."""
    held = rows.ready(ordering_key="k", priority=9, run_after=timezone.now() + timedelta(days=1))
    rows.many(4, status="READY")
    return held


@pytest.fixture
def claimer(held, strategy):
    """Has just claimed one and seen that no key was due; these rest until somebody says otherwise."""
    claimer = Claimer("w1")
    assert len(strategies.claim(connection, claimer, 1, strategy)) == 1
    assert 0 < claimer.keys_rest_until < time.monotonic() + 1
    claimer.keys_rest_until = math.inf
    return claimer


@pytest.fixture
def claim_one(claimer, strategy):
    return partial(strategies.claim, connection, claimer, 1, strategy)


def become_due(task):
    Task.objects.filter(pk=task.pk).update(run_after=timezone.now())


def test_a_key_that_becomes_due_has_its_turn_again_when_the_moment_is_over(held, claimer, claim_one):
    become_due(held)
    assert ids(claim_one()) != [held.pk]
    claimer.keys_rest_until, claimer.shortcut = 0.0, None
    assert ids(claim_one()) == [held.pk]


def test_where_nothing_else_is_due_it_is_taken_at_once(held, claimer, claim_one):
    Task.objects.filter(ordering_key=None).delete()
    become_due(held)
    assert ids(claim_one()) == [held.pk]


def test_a_claim_that_finds_nothing_at_all_has_been_round(held, claimer, claim_one):
    Task.objects.filter(ordering_key=None).delete()
    assert claim_one() == []
    assert claimer.has_been_round


def test_a_moment_later_they_are_looked_at_by_themselves(held, claimer):
    claimer.keys_rest_until = 0.0
    assert claimer.params(1)["keys"] == claimer.keys
    claimer.keys_rest_until = math.inf
    assert claimer.params(1)["keys"] == 0


def test_keys_of_which_one_was_due_do_not_rest(strategy):
    rows.ready(ordering_key="k")
    rows.many(2, status="READY", priority=9)
    claimer = Claimer("w1")
    strategies.claim(connection, claimer, 1, strategy)
    assert not claimer.keys_rest_until
