"""Order per key: one at a time and in order, whatever the strategy; and what does not hold a key."""

import math
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone

from tasks.models import ONE_PER_KEY, Queue, Task
from tasks.queue import shortcut, strategies
from tasks.queue.claim import KEYS_PER_STRIDE, STRIDES, Claimer
from tasks.queue.completion import Failure
from tests.races.crew import worker_sessions
from tests.sessions import session, wait_until_blocked
from tests.tasks import claiming, rows
from tests.tasks.claiming import STRATEGIES, claim, claim_all, ids

pytestmark = pytest.mark.django_db
AGO = timezone.now() - timedelta(hours=1)
AHEAD = timezone.now() + timedelta(days=1)


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return request.param


@pytest.fixture
def claim_some(strategy):
    return partial(claim, strategy=strategy)


def complete(claims_made):
    for made in claims_made:
        claiming.complete(connection, "w1", made)


def spread(count, **columns):
    """One task of each of so many keys."""
    tasks = [Task(task_path=rows.NOTHING, ordering_key=f"k{number:05}", **columns) for number in range(count)]
    return ids(Task.objects.bulk_create(tasks))


class TestOneAtATime:
    def test_the_tasks_of_a_key_are_taken_one_by_one_in_order(self, claim_some):
        tasks = [rows.ready(ordering_key="k") for _ in range(3)]
        for task in tasks:
            taken = claim_some()
            assert ids(taken) == [task.pk]
            assert claim_some(worker_id="w2") == []
            complete(taken)

    def test_order_within_a_key_is_by_id_not_by_priority_or_time(self, claim_some):
        first = rows.ready(ordering_key="k", priority=-5)
        rows.ready(ordering_key="k", priority=5, run_after=AGO)
        assert ids(claim_some()) == [first.pk]

    def test_a_key_is_one_in_all_queues(self, claim_some):
        first = rows.ready(ordering_key="k", queue_name="a")
        rows.ready(ordering_key="k", queue_name="b")
        assert claim_some(queues=["b"]) == []
        assert ids(claim_some(queues=["a"])) == [first.pk]
        assert claim_some(queues=["b"]) == []

    def test_a_key_stands_still_behind_a_task_in_a_paused_queue(self, claim_some):
        Queue.objects.create(name="a", paused=True)
        rows.ready(ordering_key="k", queue_name="a")
        rows.ready(ordering_key="k", queue_name="b")
        assert claim_some() == []

    def test_f07_the_database_itself_refuses_two_of_a_key_at_once(self):
        rows.processing("w1", ordering_key="k")
        with pytest.raises(IntegrityError, match=ONE_PER_KEY):
            rows.processing("w2", ordering_key="k")


class TestWhatHoldsAKey:
    @pytest.mark.parametrize("make", [rows.failed, rows.cancelled, rows.completed])
    def test_a_finished_task_does_not(self, claim_some, make):
        make(ordering_key="k")
        task = rows.ready(ordering_key="k")
        assert ids(claim_some()) == [task.pk]

    def test_a_task_that_waits_for_its_retry_does(self, claim_some):
        first = rows.ready(ordering_key="k")
        rows.ready(ordering_key="k")
        claiming.fail(connection, "w1", *claim_some(), Failure("builtins.ValueError", "", retry_seconds=60))
        assert Task.objects.get(pk=first.pk).status == "READY"
        assert claim_some() == []

    def test_its_last_failure_lets_go_of_it(self, claim_some):
        rows.ready(ordering_key="k", max_attempts=1)
        second = rows.ready(ordering_key="k")
        claiming.fail(connection, "w1", *claim_some(), Failure("builtins.ValueError", "", retry_seconds=60))
        assert ids(claim_some()) == [second.pk]

    def test_f20_a_task_of_the_future_holds_up_its_own_key_only(self, strategy):
        rows.ready(ordering_key="a", run_after=AHEAD, priority=100)
        rows.ready(ordering_key="a")
        others = ids([rows.ready(ordering_key="b"), rows.ready()])
        assert claim_all(strategy=strategy) == others


class TestManyKeys:
    """A claim looks at some hundreds of keys; the next one goes on behind them."""

    def test_every_key_is_served(self, strategy):
        expected = spread(50)
        claimer = Claimer("w1", keys=20)
        batches = iter(partial(strategies.claim, connection, claimer, 7, strategy), [])
        assert sorted(made.id for batch in batches for made in batch) == expected

    def test_a_due_key_behind_hundreds_that_wait_is_found_in_one_claim(self, claim_some):
        spread(KEYS_PER_STRIDE * 2, run_after=AHEAD)
        due = rows.ready(ordering_key="z")
        assert ids(claim_some()) == [due.pk]

    def test_a_due_key_before_the_cursor_is_found_too(self, strategy):
        due = rows.ready(ordering_key="a")
        spread(KEYS_PER_STRIDE * 2, run_after=AHEAD)
        claimer = Claimer("w1", cursor="k00100")
        assert ids(strategies.claim(connection, claimer, 10, strategy)) == [due.pk]

    def test_a_claim_that_finds_nothing_ends_and_says_how_far_it_looked(self, strategy, monkeypatch):
        monkeypatch.setattr(shortcut, "TEDIOUS_SECONDS", math.inf)  # however busy this machine is
        spread(10 * STRIDES + 1, run_after=AHEAD)
        due = rows.ready(ordering_key="z", run_after=AHEAD)
        claimer = Claimer("w1", keys=10)
        assert strategies.claim(connection, claimer, 10, strategy) == []
        assert not claimer.has_been_round
        assert strategies.claim(connection, claimer, 10, strategy) == []
        assert claimer.has_been_round
        Task.objects.filter(pk=due.pk).update(run_after=AGO)
        taken = [strategies.claim(connection, claimer, 10, strategy) for _ in range(2)]
        assert [ids(some) for some in taken] == [[], [due.pk]]

    def test_a_table_without_keys_is_looked_at_once(self, claim_some, django_assert_max_num_queries):
        with django_assert_max_num_queries(3):
            claim_some()


@pytest.mark.django_db(transaction=True)
class TestLateCommits:
    """Ids are drawn before the commit, so a lower id of a key can appear when a higher one runs already."""

    @pytest.fixture
    def late(self):
        """The first task of its key by id, invisible until its enqueuer commits."""
        with session() as enqueuer:
            enqueuer.execute("INSERT INTO tasks_task (task_path, ordering_key) VALUES ('a', 'k')")
            yield enqueuer

    def test_a_lower_id_that_appears_late_waits_for_the_one_that_runs(self, claim_some, late):
        rows.ready(ordering_key="k")
        taken = claim_some()
        late.commit()
        assert claim_some(worker_id="w2") == []
        complete(taken)
        assert [made.task_path for made in claim_some(worker_id="w2")] == ["a"]

    def test_meanwhile_it_keeps_nobody_from_the_other_keys(self, strategy, late):
        rows.ready(ordering_key="k")
        claim(strategy=strategy)
        late.commit()
        others = ids([rows.ready(ordering_key="other"), rows.ready()])
        claimer = Claimer("w2")
        taken = [made for _ in others for made in strategies.claim(connection, claimer, 1, strategy)]
        assert (ids(taken), claimer.lost_races) == (others, 0)

    @pytest.mark.parametrize("strategy", ["skip_locked", "optimistic"])
    def test_f07_two_claims_that_meet_on_a_key_take_one_of_it_and_everything_else(self, strategy, late):
        """Neither sees the other's claim yet: the unique index decides, and the second one tries again."""
        second = rows.ready(ordering_key="k")
        claimer = Claimer("w2")
        with session() as other, worker_sessions(1) as [mine], ThreadPoolExecutor() as pool:
            other.execute("SELECT")  # a transaction that outlives the claim's own
            assert ids(claim(connection=other)) == [second.pk]
            late.commit()
            free = rows.ready(priority=1)
            taken = pool.submit(strategies.claim, mine, claimer, 10, strategy)
            wait_until_blocked(mine.info.backend_pid)
            other.commit()
            assert ids(taken.result()) == [free.pk]
            assert claimer.lost_races == 1

    def test_a_claim_that_lost_its_race_spares_what_was_written_before_it(self, late):
        """A worker writes what has ended and claims in one transaction."""
        rows.ready(ordering_key="k")

        def write_and_claim(connection):
            with connection.transaction():
                connection.execute("INSERT INTO tasks_queue (name) VALUES ('written')")
                return strategies.claim(connection, Claimer("w2"), 10)

        with session() as other, worker_sessions(1) as [mine], ThreadPoolExecutor() as pool:
            other.execute("SELECT")
            claim(connection=other)
            late.commit()
            free = rows.ready(priority=1)
            taken = pool.submit(write_and_claim, mine)
            wait_until_blocked(mine.info.backend_pid)
            other.commit()
            assert ids(taken.result()) == [free.pk]
        assert Queue.objects.filter(name="written").exists()
