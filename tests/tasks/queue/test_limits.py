"""Limits of keys and queues: never more at once, in order, and true for whoever writes the table."""

import math
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from tasks import operations
from tasks.models import Limit, Queue, Task
from tasks.operations import Settings
from tasks.queue import strategies
from tasks.queue.claim import Claimer
from tasks.queue.completion import Failure
from tasks.queue.shortcut import Shortcut
from tasks.support.audit import Who
from tests.sessions import session
from tests.tasks import claiming, handlers, rows
from tests.tasks.claiming import STRATEGIES, claim, claim_all, ids

AGO = timezone.now() - timedelta(hours=1)
AHEAD = timezone.now() + timedelta(days=1)
ANNA = Who("anna", "page")


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return request.param


@pytest.fixture
def take(strategy):
    """Claim until nothing more comes; the ids."""
    return partial(claim_all, strategy=strategy)


@pytest.fixture
def take_one(strategy):
    return partial(claim, 1, strategy=strategy)


def limited(number, key="k", limit=3, **columns):
    return rows.many(number, concurrency_key=key, concurrency_limit=limit, **columns)


def slots(**filters):
    return sorted(Task.objects.processing().filter(**filters).values_list("slot", flat=True))


def end(claimed):
    claiming.complete(connection, "w1", claimed)


@pytest.mark.django_db
class TestSlots:
    def test_no_more_of_a_key_run_than_its_limit_says(self, take):
        of_key = limited(5)
        assert take() == of_key[:3]
        assert take(worker_id="w2") == []
        assert slots() == [1, 2, 3]

    def test_without_a_number_one_runs_at_a_time(self, take):
        first, _ = limited(2, limit=None)
        assert take() == [first]

    def test_a_slot_that_is_left_is_taken_again(self, take_one):
        limited(4, limit=2)
        [first], [second] = take_one(), take_one()
        assert take_one() == []
        end(first)
        [third] = take_one(worker_id="w2")
        assert Task.objects.get(pk=third.id).slot == 1
        claiming.fail(connection, "w1", second, Failure("E", "", 0.0))
        assert slots() == [1]

    def test_within_a_key_the_order_is_priority_then_time(self, take_one):
        late, early, high = (
            rows.ready(concurrency_key="k", priority=priority, run_after=AGO + timedelta(minutes=minute)).pk
            for priority, minute in ((0, 1), (0, 0), (5, 2))
        )
        order = []
        while taken := take_one():
            order += ids(taken)
            end(taken[0])
        assert order == [high, early, late]

    def test_what_is_not_due_or_not_served_holds_up_nobody_of_its_key(self, take):
        limited(1, limit=1, priority=9, run_after=AHEAD)
        limited(1, limit=1, queue_name="other")
        limited(1, limit=1, queue_name="paused")
        Queue.objects.create(name="paused", paused=True)
        [due] = limited(1, limit=1)
        assert take(queues=["paused", "default"]) == [due]

    def test_keys_and_tasks_without_one_go_in_one_order(self, take_one):
        made, order = [], []
        for number in range(4):
            made += limited(1, f"k{number}", run_after=AGO + timedelta(minutes=2 * number))
            made += rows.many(1, run_after=AGO + timedelta(minutes=2 * number + 1))
        while taken := take_one():  # each by a worker that has no shortcut yet
            order += ids(taken)
        assert order == made

    def test_a_claim_takes_no_more_of_a_key_than_it_may_at_once(self, strategy):
        limited(5)
        taken = strategies.claim(connection, Claimer("w1", at_once=2), 5, strategy)
        assert len(taken) == min(2, strategies.STRATEGIES[strategy].max_batch)

    def test_a_plain_task_does_not_hide_a_limited_one(self, take):
        [plain] = rows.many(1)
        [of_key] = limited(1)
        assert sorted(take(1)) == [plain, of_key]

    def test_what_is_held_back_holds_up_nobody(self, take):
        limited(50, limit=1, priority=50)
        plain = rows.many(3)
        assert take()[-3:] == plain
        assert take() == []

    def test_many_keys_are_all_found(self, take, strategy):
        made = Task.objects.bulk_create(
            [Task(task_path=rows.NOTHING, concurrency_key=f"k{number:04}") for number in range(400)]
        )
        if strategy == "pessimistic":  # one at a time
            made = made[:20]
            Task.objects.filter(pk__gt=made[-1].pk).delete()
        assert sorted(take(200)) == ids(made)


@pytest.mark.django_db
class TestChanges:
    def test_an_operators_limit_goes_before_the_declared_one(self, take):
        made = limited(5)
        held = Limit.objects.create(key="k", max_running=1)
        assert take() == made[:1]
        Limit.objects.filter(pk=held.pk).update(max_running=4)
        assert take() == made[1:4]

    def test_below_what_runs_nothing_begins_until_enough_have_ended(self, take_one):
        limited(9, limit=4)
        running = [take_one()[0] for _ in range(4)]
        Limit.objects.create(key="k", max_running=2)
        for ended in running[:2]:
            assert take_one() == []
            end(ended)
        assert take_one() == []
        end(running[2])
        assert len(take_one()) == 1
        assert take_one() == []
        assert Task.objects.processing().count() == 2

    def test_a_paused_key_begins_nothing(self, take):
        made = limited(2)
        Limit.objects.create(key="k", paused=True)
        assert take() == []
        Limit.objects.update(paused=False)
        assert take() == made

    def test_a_paused_rate_key_begins_nothing(self, take):
        limited(2, rate_key="r")
        Limit.objects.create(key="r", paused=True)
        assert take() == []


@pytest.mark.django_db
class TestQueues:
    def test_no_more_of_a_queue_run_than_its_limit_says(self, take):
        Queue.objects.create(name="q", max_running=2)
        made = [
            *rows.many(2, queue_name="q"),
            *rows.many(2, queue_name="q", ordering_key="o"),
            *limited(2, queue_name="q"),
        ]
        other = rows.many(1)
        assert sorted(take()) == sorted([*made[:2], *other])
        assert take(worker_id="w2") == []
        held = Task.objects.processing().filter(queue_name="q").values_list("queue_slot", flat=True)
        assert sorted(held) == [1, 2]

    def test_what_ran_before_the_limit_counts(self, take):
        rows.many(3, queue_name="q")
        taken = claim(2)
        Queue.objects.create(name="q", max_running=2)
        assert take() == []
        end(taken[0])
        assert len(take()) == 1

    def test_a_full_queue_takes_no_place_in_a_claim(self, take_one):
        rows.many(3, queue_name="q", priority=9)
        assert len(claim(2)) == 2
        Queue.objects.create(name="q", max_running=2)
        [other] = rows.many(1)
        assert [claimed.id for claimed in take_one()] == [other]

    def test_a_claim_behind_the_last_task_takes_nothing_of_a_limited_queue(self):
        rows.many(2, queue_name="q")
        claimer = Claimer("w1", shortcut=Shortcut({("q", 0): ("-infinity", 0)}, math.inf))
        Queue.objects.create(name="q", max_running=1)
        assert len(strategies.claim(connection, claimer, 5)) == 1
        assert Task.objects.get(status="PROCESSING").queue_slot == 1

    def test_both_limits_hold(self, take):
        Queue.objects.create(name="q", max_running=3)
        limited(5, "a", limit=2, queue_name="q")
        limited(5, "b", limit=2, queue_name="q")
        assert len(take()) == 3
        assert sorted(slots(concurrency_key="a") + slots(concurrency_key="b")) in ([1, 1, 2], [1, 2, 1])


@pytest.mark.django_db
class TestRates:
    def test_a_rate_lets_one_begin_and_tells_when_the_next_may(self, strategy):
        made = limited(3, "r", limit=None, rate_key="r", rate=1, period_seconds=3600)
        claimer = Claimer("w1")
        assert ids(strategies.claim(connection, claimer, 5, strategy)) == made[:1]
        assert strategies.claim(connection, claimer, 5, strategy) == []
        assert 3000 < claimer.look_in <= 3600
        with connection.cursor() as cursor:
            cursor.execute("UPDATE tasks_bucket SET next_at = clock_timestamp()")
        assert ids(strategies.claim(connection, claimer, 5, strategy)) == made[1:2]

    def test_the_operators_rate_goes_before_the_declared_one(self, take):
        limited(40, "r", limit=None, rate_key="r", rate=1, period_seconds=3600)
        Limit.objects.create(key="r", rate=100, period_seconds=1)
        assert len(take(5)) >= 40

    def test_a_rate_of_a_concurrency_key_or_a_queue_is_kept(self, take):
        Limit.objects.create(key="k", rate=1, period_seconds=3600)
        Queue.objects.create(name="q", rate=1, period_seconds=3600)
        limited(3)
        rows.many(3, queue_name="q")
        assert len(take()) == 2

    def test_two_keys_share_the_rate_of_one(self, take):
        limited(3, "a", rate_key="r", rate=1, period_seconds=3600)
        limited(3, "b", rate_key="r", rate=1, period_seconds=3600)
        assert len(take()) == 1

    @pytest.mark.parametrize(
        ("options", "key", "rate_key"),
        [
            ({}, "tests.tasks.handlers.echo", "tests.tasks.handlers.echo"),
            ({"rate_key": lambda value: f"to-{value}"}, "to-7", "to-7"),
            ({"rate_key": "r", "concurrency_key": "k"}, "k", "r"),
        ],
    )
    def test_a_declared_rate_is_stored_with_each_task(self, options, key, rate_key):
        limited_echo = replace(handlers.echo, rate_limit="100/m", **options)
        made = [limited_echo.enqueue(7).id, *limited_echo.enqueue_many([((7,), {})])]
        columns = ("concurrency_key", "rate_key", "rate", "period_seconds")
        stored = Task.objects.filter(pk__in=made).values_list(*columns)
        assert list(stored) == [(key, rate_key, 100, 60)] * 2

    @pytest.mark.django_db(transaction=True)
    def test_a_claim_that_is_rolled_back_gives_its_tokens_back(self):
        limited(1, "r", limit=None, rate_key="r", rate=1, period_seconds=3600)
        with session(autocommit=True) as conn:
            with conn.transaction(force_rollback=True):
                assert len(claim(connection=conn)) == 1
            assert len(claim(connection=conn)) == 1


@pytest.mark.django_db
class TestOperators:
    def test_a_requeued_task_waits_for_a_slot_and_runs_within_its_limit(self, take, take_one):
        limited(1, limit=1)
        [running] = take_one()
        again = rows.failed(concurrency_key="k", concurrency_limit=1)
        assert operations.requeue([again.pk], ANNA).done == [again.pk]
        assert (take(), slots()) == ([], [1])
        end(running)
        assert (take(), slots()) == ([again.pk], [1])

    def test_a_running_task_is_not_requeued_out_of_its_slot(self, take, take_one):
        first, _ = limited(2, limit=1)
        with rows.living_worker("w1"):
            assert ids(take_one()) == [first]
            assert list(operations.requeue([first], ANNA).refused) == [first]
            assert (take(), slots()) == ([], [1])

    def test_a_stale_task_that_is_requeued_leaves_its_slot(self, take, take_one):
        first, second = limited(2, limit=1)
        assert ids(take_one(worker_id=rows.dead_worker())) == [first]
        assert operations.requeue([first], ANNA).done == [first]
        assert slots() == []
        [taken] = take()
        assert taken in {first, second}
        assert slots() == [1]

    def test_an_edited_task_is_held_to_the_limits_of_its_new_place(self, take):
        Queue.objects.create(name="narrow", max_running=1)
        made = limited(3)
        operations.edit(made, ANNA, Settings(queue_name="narrow"))
        assert take() == made[:1]
        operations.edit([made[2]], ANNA, Settings(queue_name="wide", priority=9))
        assert take() == [made[2]]
        assert slots() == [1, 2]


@pytest.mark.django_db
class TestRawSql:
    @pytest.mark.parametrize(
        "values",
        [
            "slot = NULL",
            "slot = 0",
            "slot = 1",  # taken
            "slot = 4",  # above the limit
        ],
    )
    def test_nobody_begins_one_too_many(self, values):
        first, *_, last = limited(5)
        assert ids(claim(1)) == [first]
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE tasks_task SET status = 'PROCESSING', claimed_by = 'me', {values} WHERE id = %s", [last]
            )

    def test_no_slot_is_kept_by_a_task_that_does_not_run(self):
        limited(1)
        [taken] = claim()
        with connection.cursor() as cursor:
            cursor.execute("UPDATE tasks_task SET status = 'READY', claimed_by = NULL WHERE id = %s", [taken.id])
        assert Task.objects.get(pk=taken.id).slot is None

    def test_a_task_has_an_order_or_a_limit(self):
        with pytest.raises(IntegrityError, match="exclude each other"):
            rows.ready(ordering_key="o", concurrency_key="k")
