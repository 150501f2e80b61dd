"""Where nothing is due but tasks of one queue and priority, the line is walked now and then, not for each claim."""

import time
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import Queue, Task
from tasks.queue import claim, strategies
from tasks.queue.claim import Claimer
from tests.tasks import rows
from tests.tasks.claiming import ids

pytestmark = pytest.mark.django_db

LATER = timezone.now() + timedelta(days=1)


@pytest.fixture(autouse=True)
def long_moment(monkeypatch):
    monkeypatch.setattr(claim, "KEYS_REST_SECONDS", 60)


def scheduled():
    rows.ready(priority=9, run_after=LATER)


def held_back():
    rows.ready(ordering_key="k", run_after=LATER)
    rows.ready(ordering_key="k", priority=9)


def paused():
    Queue.objects.create(name="paused", paused=True)
    rows.ready(queue_name="paused", priority=9)


@pytest.fixture(params=[scheduled, held_back, paused], ids=lambda fill: fill.__name__)
def claimer(request):
    """Has taken the first of nine tasks, beside something that is not due."""
    request.param()
    rows.many(9)
    claimer = Claimer("w1")
    [first] = strategies.claim(connection, claimer, 1)
    claimer.first = first.id
    return claimer


def test_it_is_walked_now_and_then(claimer):
    assert claimer.shortcut.until == claimer.keys_rest_until <= time.monotonic() + 60
    following = strategies.claim(connection, claimer, 1)
    assert claimer.shortcut.ends["default", 0][1] == following[0].id, "it goes along"
    following += strategies.claim(connection, claimer, 2) + strategies.claim(connection, claimer, 10)
    assert ids(following) == list(range(claimer.first + 1, claimer.first + 9))
    assert strategies.claim(connection, claimer, 1) == []


def test_what_comes_in_between_waits_for_that_moment_and_no_longer(claimer):
    urgent = rows.ready(priority=9)
    assert strategies.claim(connection, claimer, 1)[0].id == claimer.first + 1
    claimer.shortcut = None
    assert ids(strategies.claim(connection, claimer, 1)) == [urgent.pk]


def test_where_nothing_is_left_in_it_the_others_are_looked_at_at_once(claimer):
    assert len(strategies.claim(connection, claimer, 8)) == 8
    urgent = rows.ready(priority=9)
    assert ids(strategies.claim(connection, claimer, 1)) == [urgent.pk]


OTHERS = [{"priority": -1}, {"queue_name": "other"}, {"ordering_key": "k", "priority": -1}]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_line_that_is_not_narrow_is_walked_each_time(other):
    rows.many(3)
    rows.ready(**other)
    claimer = Claimer("w1")
    assert strategies.claim(connection, claimer, 1)
    assert claimer.shortcut is None


def test_nor_does_a_key_s_head_that_is_due_alone_leave_a_way():
    rows.ready(ordering_key="k")
    scheduled()
    claimer = Claimer("w1")
    assert strategies.claim(connection, claimer, 1)
    assert claimer.shortcut.until < time.monotonic()


def test_keys_that_were_not_all_looked_at_may_be_due():
    for key in "abc":
        rows.ready(ordering_key=key, run_after=LATER)
    rows.many(3)
    claimer = Claimer("w1", keys=2)
    assert strategies.claim(connection, claimer, 1)
    assert claimer.shortcut is None or claimer.shortcut.until < time.monotonic()
    Task.objects.filter(ordering_key="c").update(run_after=timezone.now(), priority=9)
    assert strategies.claim(connection, claimer, 1)[0].ordering_key == "c"
