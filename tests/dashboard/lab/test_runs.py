"""Every pattern run for real: unsafe ones are caught, safe ones are clean, with kills too; nothing of a run stays.

A run starts processes, so it is made once for all that is said of it.
"""

import threading
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from dashboard.lab import runner
from dashboard.lab.forkserver import Forkserver
from dashboard.lab.measure import Result
from dashboard.lab.patterns import BUILT_IN
from dashboard.lab.schema import LabRefused
from dashboard.lab.worker import Plan
from tests.commands import database_url
from tests.dashboard.lab.live import rows_unchanged
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SAFE = [pattern.name for pattern in BUILT_IN if pattern.is_safe]
# What needs more than two processes that meet at a dozen items.
LOADS = {
    "unsafe": {"outside_lockers": 1, "work_ms": 10},
    "double_checked": {"outside_lockers": 1, "work_ms": 10},
    "account_pessimistic": {"work_ms": 25},
    "optimistic_claim_as_printed": {"items": 60, "work_ms": 0},  # the swap is what matters: as many as can be
}


CREW: list[Forkserver] = []
RESULTS: dict[str, Result] = {}


@pytest.fixture(scope="module", autouse=True)
def _crew():
    """One for all runs: each start is a fork. A busy machine may stand still for seconds: no run ends for that."""
    with closing(Forkserver()) as crew, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "STALL_SECONDS", 60.0)
        CREW[:] = [crew]
        yield
    RESULTS.clear()


def result_of(name: str) -> Result:
    """The one run of a pattern under its load, beside live rows that stay as they are."""
    if name not in RESULTS:
        remote = {"remote_ms": 5} if name in SAFE else {}
        RESULTS[name] = run(name, **remote, **LOADS.get(name, {}))
    return RESULTS[name]


def shown(name: str, is_seen: Callable[[Result], object]) -> Result:
    """The run of a pattern in which this is seen: it is run again until two processes have met so."""

    def it_is_seen() -> Result | None:
        result = result_of(name)
        return result if is_seen(result) else RESULTS.pop(name) and None

    return wait_until(it_is_seen, seconds=120)


def run(name: str, **numbers: int) -> Result:
    threads = set(threading.enumerate())
    with rows_unchanged():
        plan = Plan(name, **{"workers": 2, "items": 12, "work_ms": 5, **numbers})
        result = runner.run(plan, forkserver=CREW[0]).result
    assert not set(threading.enumerate()) - threads  # one that an earlier test left may end meanwhile
    return result


@pytest.mark.parametrize("name", SAFE)
def test_a_safe_pattern_does_each_item_once_and_loses_nothing(name):
    result = result_of(name)
    assert (result.processed, result.duplicates, result.lost_updates, result.lost_work) == (12, 0, 0, 0), result
    assert result.is_clean
    assert sum(result.share.values()) == 12


@pytest.mark.parametrize("name", ["double_checked", "skip_locked_claim", "cache_lock", "account_pessimistic"])
def test_a_killed_worker_costs_a_safe_pattern_no_more_than_it_says(name):
    result = killed(name)
    assert (result.processed, result.lost_updates, result.lost_work, result.stopped) == (16, 0, 0, ""), result
    assert result.duplicates <= result.may_repeat
    assert result.is_clean


def killed(name: str) -> Result:
    """A run whose worker was killed before it had come to its end."""

    def a_worker_was_killed() -> Result | None:
        result = run(name, items=16, kill=1, work_ms=15, seed=3)
        return result if result.kills else None

    return wait_until(a_worker_was_killed, seconds=120)


@pytest.mark.parametrize("name", ["unsafe", "optimistic_complete", "optimistic_claim_as_printed"])
def test_what_lacks_its_guard_does_things_twice(name):
    assert not shown(name, lambda result: result.duplicates).is_clean


def test_what_the_article_prints_is_shown_beside_the_same_with_the_version_trigger():
    # Without a lost race nobody was kept from a claim, and the second part would prove nothing.
    result = shown("optimistic_claim_as_printed", lambda result: result.guarded["lost_races"])
    guarded = result.guarded
    assert (guarded["processed"], guarded["duplicates"], guarded["is_clean"]) == (60, 0, True), result
    assert result_of("optimistic_complete").guarded is None


def test_without_a_fence_results_of_work_are_lost():
    assert shown("optimistic_complete", lambda result: result.lost_work)


def test_updates_are_lost_without_a_lock_or_a_version():
    assert shown("account_unsafe", lambda result: result.lost_updates)


def test_save_writes_stale_columns_back_over_those_of_others():
    assert shown("unsafe", lambda result: result.lost_updates)


def test_retries_repeat_the_slow_call_of_the_optimist_alone():
    optimist = shown("account_optimistic", lambda result: result.retries)
    assert optimist.repeated_calls >= optimist.retries
    assert result_of("account_pessimistic").repeated_calls == 0


def test_the_blocked_are_sampled():
    assert shown("account_pessimistic", lambda result: result.blocked_samples)


def test_a_naive_lock_of_a_dead_holder_blocks_for_ever(monkeypatch):
    monkeypatch.setattr(runner, "STALL_SECONDS", 1.0)
    result = run("cache_lock_naive", items=6, kill=1, work_ms=150)  # long enough to be killed in
    assert result.stopped.startswith("nothing moved"), result
    assert not result.is_clean


def test_one_run_at_a_time():
    with psycopg.connect(database_url(), autocommit=True) as other:
        other.execute(runner.ONLY_RUN)
        with pytest.raises(LabRefused, match="Another run"):
            run("unsafe")
        assert run("double_checked", items=6, alongside=True).is_clean
        assert other.execute(runner.LET_NEXT).fetchone() == (True,), "the run alongside has let go of what was not its"


def test_a_run_that_would_take_the_last_connections_is_refused(monkeypatch):
    monkeypatch.setattr(runner, "KEPT_FREE", 10_000)
    with pytest.raises(LabRefused, match="10000 are kept for others"):
        run("unsafe")


def test_a_run_that_is_stopped_says_so():
    with rows_unchanged():
        plan = Plan("double_checked", workers=1, items=500, work_ms=20)
        result = runner.run(plan, progress=lambda effects: effects < 5, forkserver=CREW[0]).result
    assert result.stopped == "stopped by a person"
    assert 5 <= result.processed < 500
