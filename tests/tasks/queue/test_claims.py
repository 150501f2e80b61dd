"""What every strategy must do alike: which tasks a claim takes, in which order, and what it writes."""

from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from tasks.models import Queue, Task
from tasks.queue import release, strategies
from tasks.queue.claim import Claimer
from tests.tasks import rows
from tests.tasks.claiming import STRATEGIES, claim, claim_all, ids

pytestmark = pytest.mark.django_db
AGO = timezone.now() - timedelta(hours=1)
AHEAD = timezone.now() + timedelta(days=1)


@pytest.fixture(params=[(strategy, limit) for strategy in STRATEGIES for limit in (1, 4)], ids=str)
def take(request):
    """Claims everything that is due; gives the ids in the order in which they were taken."""
    strategy, limit = request.param
    return partial(claim_all, limit, strategy=strategy)


@pytest.fixture(params=STRATEGIES)
def claim_some(request):
    return partial(claim, strategy=request.param)


class TestOrder:
    def test_what_was_due_first_goes_first(self, take):
        late, early, middle = (rows.ready(run_after=AGO + timedelta(minutes=minute)) for minute in (3, 1, 2))
        assert take() == ids([early, middle, late])

    def test_of_one_moment_the_lower_id_goes_first(self, take):
        expected = rows.many(9, run_after=AGO)
        assert take() == expected

    def test_higher_priority_goes_first(self, take):
        low, high, middle = (rows.ready(priority=priority) for priority in (-100, 100, 0))
        assert take() == ids([high, middle, low])

    @pytest.mark.parametrize("queues", [None, ["a", "b"], ["b", "a"]])
    def test_priority_counts_across_queues(self, take, queues):
        third, first = rows.ready(queue_name="a", priority=0), rows.ready(queue_name="b", priority=9)
        second, last = rows.ready(queue_name="a", priority=5), rows.ready(queue_name="b", priority=-1)
        assert take(queues=queues) == ids([first, second, third, last])

    def test_queues_of_one_priority_are_served_in_the_order_named(self, take):
        second = [rows.ready(queue_name="a"), rows.ready(queue_name="a")]
        first = [rows.ready(queue_name="b"), rows.ready(queue_name="b")]
        assert take(queues=["b", "a"]) == ids(first + second)

    @pytest.mark.parametrize("queues", [None, ["default"]])
    def test_tasks_with_an_ordering_key_stand_in_the_same_line(self, take, queues):
        keys = ["x", None, "y", None, None, "z", None]
        tasks = [rows.ready(ordering_key=key, run_after=AGO + timedelta(seconds=at)) for at, key in enumerate(keys)]
        assert take(queues=queues) == ids(tasks)


class TestQueues:
    @pytest.mark.parametrize("key", [None, "k"])
    def test_only_the_named_queues_are_served(self, take, key):
        rows.ready(queue_name="other", ordering_key=key)
        assert take(queues=["a", "b"]) == []

    @pytest.mark.parametrize("key", [None, "k"])
    def test_without_names_every_queue_is(self, take, key):
        task = rows.ready(queue_name="nobody named it", ordering_key=key)
        assert take() == [task.pk]

    @pytest.mark.parametrize("queues", [None, ["a", "b"]])
    @pytest.mark.parametrize("key", [None, "k"])
    def test_a_paused_queue_is_passed_over(self, take, queues, key):
        Queue.objects.create(name="a", paused=True)
        rows.ready(queue_name="a", priority=50, ordering_key=key)
        task = rows.ready(queue_name="b")
        assert take(queues=queues) == [task.pk]
        Queue.objects.update(paused=False)
        assert len(take(queues=queues)) == 1

    def test_no_queue_starves_another_when_none_is_named(self, claim_some):
        for name in ("a", "b"):
            rows.many(40, queue_name=name)
        assert {claim.queue_name for _ in range(40) for claim in claim_some(1)} == {"a", "b"}


class TestDue:
    @pytest.mark.parametrize("priority", [0, 100])
    @pytest.mark.parametrize("key", [None, "k"])
    def test_a_scheduled_task_is_not_taken_before_its_time(self, take, priority, key):
        scheduled = rows.ready(run_after=AHEAD, priority=priority, ordering_key=key)
        due = rows.ready()
        assert take() == [due.pk]
        Task.objects.filter(pk=scheduled.pk).update(run_after=AGO)
        assert take() == [scheduled.pk]

    def test_nothing_due_is_an_empty_claim(self, claim_some):
        rows.ready(run_after=AHEAD)
        assert claim_some() == []

    @pytest.mark.parametrize("make", [rows.completed, rows.failed, rows.cancelled, partial(rows.processing, "w2")])
    @pytest.mark.parametrize("key", [None, "k"])
    def test_only_what_is_ready_is_taken(self, take, make, key):
        make(ordering_key=key)
        assert take() == []


class TestWhatIsWritten:
    def test_the_row_says_who_holds_it_and_that_the_attempt_is_spent(self, claim_some):
        task = rows.ready(attempt=2, version=7)
        claim_some(worker_id="w9")
        task.refresh_from_db()
        assert (task.status, task.claimed_by, task.attempt, task.version) == ("PROCESSING", "w9", 3, 8)
        assert task.started_at >= task.created_at

    def test_the_claim_is_the_row(self, claim_some):
        task = rows.ready(
            queue_name="q", priority=3, args=[1, "é"], kwargs={"a": None}, ordering_key="k", attempt=1, max_attempts=3
        )
        [claim] = claim_some()
        task.refresh_from_db()
        for column in ("id", "task_path", "queue_name", "priority", "version", "attempt", "max_attempts"):
            assert getattr(claim, column) == getattr(task, column), column
        assert claim.ordering_key == task.ordering_key
        assert (datetime.fromisoformat(claim.created_at), claim.claimed_at()) == (task.created_at, task.started_at)
        assert datetime.fromisoformat(claim.run_after) == task.run_after
        assert claim.arguments() == ([1, "é"], {"a": None})

    def test_what_is_released_has_its_attempt_back(self, claim_some):
        task = rows.ready(attempt=2)
        [claim] = claim_some()
        assert release.release(connection, "w1", [(claim.id, claim.claimed_at())]) == 1
        task.refresh_from_db()
        assert (task.status, task.attempt, task.claimed_by, task.started_at) == ("READY", 2, None, None)
        assert ids(claim_some()) == [task.pk]

    def test_an_old_request_to_cancel_does_not_reach_the_new_attempt(self, claim_some):
        rows.ready(cancel_requested_at=AGO)
        claim_some()
        assert Task.objects.get().cancel_requested_at is None


# Without them the planner runs the subquery of `id IN (SELECT … LIMIT …)` anew for each row, as on stale statistics.
BETTER_PLANS = ["enable_hashjoin", "enable_mergejoin", "enable_hashagg", "enable_sort", "enable_material"]
CLAIM_AS_OFTEN_WRITTEN = """
UPDATE tasks_task SET status = 'PROCESSING', claimed_by = 'w1' WHERE id IN (
    SELECT id FROM tasks_task WHERE status = 'READY' ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
"""


class TestLimit:
    @pytest.fixture
    def bad_plans(self):
        rows.many(500)
        with connection.cursor() as cursor:
            for name in BETTER_PLANS:
                cursor.execute(f"SET LOCAL {name} = off")
            yield cursor

    def test_f03_these_plans_make_the_obvious_statement_take_too_much(self, bad_plans):
        bad_plans.execute(CLAIM_AS_OFTEN_WRITTEN)
        assert bad_plans.rowcount > 1

    @pytest.mark.parametrize("limit", [1, 7])
    def test_f03_no_more_than_asked_is_taken_under_any_plan(self, bad_plans, claim_some, limit):
        assert len(claim_some(limit)) == Task.objects.processing().count() <= limit

    @pytest.mark.parametrize("limit", [1, 5])
    def test_f03_no_more_than_asked_over_several_queues_priorities_and_keys(self, claim_some, limit):
        for number in range(12):
            for key in (None, f"k{number}"):
                rows.ready(queue_name=f"q{number % 3}", priority=number % 2, ordering_key=key)
        assert len(claim_some(limit)) == Task.objects.processing().count() <= limit

    def test_none_asked_none_looked_for(self, claim_some, django_assert_num_queries):
        rows.many(3)
        with django_assert_num_queries(0):
            assert claim_some(0) == []

    @pytest.mark.parametrize(("strategy", "largest"), [("skip_locked", 2_000), ("optimistic", 50), ("pessimistic", 1)])
    def test_a_strategy_has_a_largest_batch(self, strategy, largest):
        rows.many(2_010)
        assert len(claim(10_000, strategy=strategy)) == largest


@pytest.mark.parametrize("joined", [True, False], ids=["in a transaction", "alone"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_row_that_is_refused_fails_one_claim_and_no_more(strategy, joined):
    """For some seconds the others are claimed one by one, around it; then it is tried again."""
    before, _bad, after = rows.ready(), rows.ready(queue_name="bad"), rows.ready()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE tasks_task ADD CONSTRAINT unclaimable CHECK (queue_name <> 'bad' OR attempt = 0)")
    claimer = Claimer("w1", ["bad", "default"])
    taken = []
    for _ in range(4):
        with suppress(IntegrityError), transaction.atomic() if joined else nullcontext():
            taken += ids(strategies.claim(connection, claimer, 10, strategy))
    assert sorted(taken) == [before.pk, after.pk]
    claimer.careful_until = 0.0
    with pytest.raises(IntegrityError, match="unclaimable"), transaction.atomic():
        strategies.claim(connection, claimer, 10, strategy)


def test_an_error_that_is_no_race_for_a_key_is_raised(claim_some):
    rows.ready(ordering_key="k")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE tasks_task ADD CONSTRAINT nobody CHECK (claimed_by <> 'w1')")
    with pytest.raises(IntegrityError, match="nobody"):
        claim_some()


def test_f07_a_candidate_that_was_edited_since_it_was_read_is_a_lost_race(monkeypatch):
    """The optimistic claim holds no lock between its look and its swap: the version alone tells of the edit."""
    task, walk = rows.ready(), strategies.walk

    def look_and_be_late(*args):
        candidates = walk(*args)
        Task.objects.update(run_after=AHEAD)
        return candidates

    monkeypatch.setattr(strategies, "walk", look_and_be_late)
    claimer = Claimer("w1")
    assert strategies.claim(connection, claimer, 1, "optimistic") == []
    assert claimer.lost_races == 1
    task.refresh_from_db()
    assert (task.status, task.attempt) == ("READY", 0)
