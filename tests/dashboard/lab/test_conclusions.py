"""What the numbers say in words: each sentence on either side of its threshold."""

import pytest

from dashboard.lab import conclusions
from tests.dashboard.lab.cases import case

HIGH = "Contention is high: account_optimistic did the work of each operation"
LOW = "Contention is low: account_optimistic repeated"


def told(*cases):
    return " ".join(conclusions.drawn(cases))


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"duplicates": 4}, "unsafe repeated items 4 times."),
        ({"duplicates": 1, "may_repeat": 1}, ""),
        ({"lost_updates": 1, "lost_work": 2}, "unsafe lost 1 update and lost 2 results."),
        ({"unprocessed": 3, "stopped": "too late"}, "unsafe left 3 items and was ended (too late)."),
        ({"slots": 3, "leaked_slots": 2, "most_at_once": 3}, "unsafe leaked 2 slots."),
        ({"slots": 3, "most_at_once": 5}, "unsafe ran 2 more at once than its limit."),
        ({"slots": 3, "most_at_once": 3}, ""),
    ],
)
def test_what_was_broken_is_named_with_its_number(numbers, said):
    first, *others = conclusions.drawn([case("unsafe", **numbers), case("double_checked")])
    assert first == said if said else "unsafe" in " ".join([first, *others]) and "again" not in first
    assert len(others) >= 1


def test_what_the_missing_guard_would_have_done_is_told_beside_it():
    first, second, *_ = conclusions.drawn(
        [case("optimistic_claim_as_printed", duplicates=4, guarded={"duplicates": 0})]
    )
    assert first == "optimistic_claim_as_printed repeated items 4 times."
    assert (
        second == "With the version trigger the same load through optimistic_claim_as_printed repeated items 0 times."
    )


def test_when_nothing_was_clean_it_says_so():
    assert conclusions.drawn([case("unsafe", lost_updates=1)])[-1].startswith("No pattern of this comparison")
    assert conclusions.drawn([]) == []


def test_the_fastest_is_named_and_those_within_the_noise_are_not_ranked():
    said = told(case("double_checked_batched", 100), case("double_checked", 81), case("double_checked_nowait", 79))
    assert "For orders, double_checked_batched was the fastest clean pattern: 100 items a second." in said
    assert "Within the noise of double_checked_batched: double_checked." in said
    assert "double_checked_nowait took 1.3 times as long as double_checked_batched" in said
    assert "took" not in told(case("double_checked_batched", 100), case("double_checked", 81))


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ({"waited_share": 0.5, "retries": 50, "lost_races": 50}, "50 % of its workers' time was waiting."),
        ({"waited_share": 0.49, "retries": 5, "lost_races": 50}, "0.5 failed tries per item."),
        ({"retries": 4, "lost_races": 10, "queries_per_item": 9.0}, "1.0 lost races per item."),
        ({"lost_races": 9, "queries_per_item": 5.0}, "5.0 statements per item instead of 4.0."),
        ({"lost_races": 9, "queries_per_item": 4.9}, "the numbers do not show why."),
    ],
)
def test_the_slowest_is_explained_by_what_dominates(numbers, why):
    said = told(case("double_checked_batched", 400, queries_per_item=4.0), case("double_checked", 100, **numbers))
    assert f"double_checked took 4.0 times as long as double_checked_batched: {why}" in said


@pytest.mark.parametrize(("retries", "said"), [(5, HIGH), (4, ""), (2, ""), (1, LOW)])
def test_contention_decides_between_the_two_ways_to_change_one_row(retries, said):
    found = told(case("account_pessimistic"), case("account_optimistic", retries=retries))
    assert [text for text in (HIGH, LOW) if text in found] == ([said] if said else [])


@pytest.mark.parametrize(
    ("speed", "said"),
    [
        (200, "A queue would serve better than locking at 5 ms of work for each item: skip_locked_claim did 2.0 times"),
        (199, ""),
        (81, ""),
        (80, "A queue would not be faster at 5 ms of work for each item: double_checked"),
    ],
)
def test_a_queue_is_recommended_by_its_factor_over_the_best_lock_for_each_item(speed, said):
    found = told(case("skip_locked_claim", speed), case("double_checked", 100), case("cache_lock", 1))
    assert ("A queue" in found, said in found) == (bool(said), True)


def test_nothing_is_said_of_a_queue_that_was_not_measured():
    assert "queue" not in told(case("double_checked", 100), case("cache_lock", 1))
    assert "A queue" not in told(case("skip_locked_claim", 900), case("double_checked_batched", 100))


@pytest.mark.parametrize(("lock", "claim", "is_said"), [(0.3, 0.15, True), (0.29, 0.0, False), (0.3, 0.16, False)])
def test_a_lock_that_is_held_during_the_work_is_named_when_it_costs(lock, claim, is_said):
    found = told(case("skip_locked_claim", waited_share=claim), case("double_checked", waited_share=lock))
    assert ("double_checked holds its lock during the work, and its workers spent 30 %" in found) is is_said


@pytest.mark.parametrize(("seconds", "is_said"), [(0.31, True), (0.32, False)])
def test_where_the_work_takes_the_time_the_lock_hardly_matters(seconds, is_said):
    plan = {"work_ms": 100}  # ten items of 100 ms among four workers: a quarter of a second at best
    found = told(case("double_checked", plan=plan, seconds=seconds), case("cache_lock", 99, plan=plan))
    assert ("of the workers' time was the items' own work" in found) is is_said


def test_repeated_calls_are_a_warning():
    said = "account_optimistic repeated the slow call 3 times: that must do no harm when it is repeated."
    assert said in told(case("account_optimistic", repeated_calls=3))
    assert "repeated the slow call" not in told(case("account_optimistic"))


def test_runs_of_different_loads_are_not_ranked():
    said = conclusions.drawn([case("unsafe", lost_updates=2), case("double_checked", plan={"workers": 8})])
    assert said == [
        "unsafe lost 2 updates.",
        "These runs had different loads: their numbers can be read, but not ranked.",
    ]
    assert "different loads" not in told(case("double_checked"), case("cache_lock", plan={"seed": 9, "seconds": 5}))
