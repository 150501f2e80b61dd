"""A limit of three at once, kept in three ways, with workers killed and sessions cut: which leak, which exceed it.

The ledger on the runs' other connections says how many ran at once.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest

from dashboard.lab import runner
from dashboard.lab.forkserver import Forkserver
from dashboard.lab.measure import Result
from dashboard.lab.worker import Plan
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
EARLY = 4  # with this seed two kills and two cuts come in the first quarter


@pytest.fixture(scope="module")
def crew() -> Iterator[Forkserver]:
    with closing(Forkserver()) as crew, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "STALL_SECONDS", 60.0)
        yield crew


def run(crew: Forkserver, name: str, *, leaked: int | None = None, **numbers: int) -> Result:
    """A run in which as many were killed and cut as it was to be.

    `leaked`: it is run again until so many were killed in the middle, as one may end its work just before it is killed.
    """
    plan = Plan(name, **{"workers": 5, "items": 100, "work_ms": 30, "seed": EARLY, **numbers})

    def all_happened() -> Result | None:
        result = runner.run(plan, forkserver=crew).result
        happened = (result.kills, result.cuts) == (plan.kill, plan.cut)
        return result if happened and leaked in (None, result.leaked_slots) else None

    return wait_until(all_happened, seconds=120)


def test_the_seed_leaves_time_to_recover():
    plan = Plan("slots_by_index", items=100, kill=2, cut=2, seed=EARLY)
    assert max(moment for moment, _ in (*plan.kills(), *plan.cuts())) < 25


def test_slots_by_index_come_back_with_the_row_and_are_never_exceeded(crew):
    result = run(crew, "slots_by_index", kill=2, cut=2)
    assert (result.most_at_once, result.leaked_slots, result.is_clean) == (3, 0, True), result
    assert result.refill_ms is not None, result


def test_each_kill_leaks_a_slot_of_a_counter_for_ever(crew):
    result = run(crew, "slots_by_counter", kill=2, leaked=2)
    assert (result.most_at_once, result.leaked_slots, result.refill_ms) == (3, 2, None), result
    assert result.processed == 100
    assert not result.is_clean


def test_a_counter_whose_slots_have_all_leaked_stops_everything(crew, monkeypatch):
    monkeypatch.setattr(runner, "STALL_SECONDS", 2.0)
    result = run(crew, "slots_by_counter", kill=3, leaked=3)
    assert (result.leaked_slots, result.stopped[:13]) == (3, "nothing moved"), result


def test_an_advisory_lock_is_free_at_once_after_a_kill(crew):
    result = run(crew, "slots_by_advisory_lock", kill=2)
    assert (result.most_at_once, result.leaked_slots, result.is_clean) == (3, 0, True), result
    assert result.refill_ms is not None, result


def test_an_advisory_lock_no_longer_counts_work_whose_session_has_ended(crew):
    def it_was_exceeded() -> Result | None:
        result = run(crew, "slots_by_advisory_lock", cut=2, work_ms=100, items=60)
        return result if result.over_the_limit else None

    result = wait_until(it_was_exceeded, seconds=120)
    assert (result.leaked_slots, result.is_clean) == (0, False), result
