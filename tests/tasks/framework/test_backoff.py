"""The waiting time before the next attempt: its examples, its bounds, its jitter."""

import doctest

import pytest

from tasks.framework import declaration


def test_its_examples():
    results = doctest.testmod(declaration)
    assert (results.failed, results.attempted > 0) == (0, True)


@pytest.mark.parametrize("attempt", [1, 2, 5, 11, 12, 31, 1000, 32_767])
def test_it_doubles_up_to_an_hour_and_half_of_it_is_jitter(attempt):
    whole = min(3600.0, 2.0 ** min(attempt, 20))
    assert declaration.exponential(attempt, random=0.0) == whole / 2
    assert declaration.exponential(attempt, random=0.999_999) == pytest.approx(whole, rel=1e-5)


def test_tasks_that_failed_together_do_not_come_back_together():
    assert len({declaration.exponential(3) for _ in range(50)}) > 40
