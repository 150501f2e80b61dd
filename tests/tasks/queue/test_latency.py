"""Percentiles out of counts per bucket: right at the edges, and never without a bound."""

import doctest

import pytest

from tasks.queue import throughput
from tasks.queue.throughput import BOUNDS_SECONDS, BUCKETS, percentile


def only(bucket: int, count: int = 1) -> list[int]:
    return [count if number == bucket else 0 for number in range(BUCKETS)]


def test_the_examples_hold():
    assert doctest.testmod(throughput).failed == 0


@pytest.mark.parametrize("bucket", range(len(BOUNDS_SECONDS)))
def test_a_percentile_lies_within_its_bucket(bucket):
    found = percentile(only(bucket, 100), 0.95)
    assert (BOUNDS_SECONDS[bucket - 1] if bucket else 0) < found <= BOUNDS_SECONDS[bucket]


def test_the_slow_ones_decide_the_high_percentiles_alone():
    counts = [first + second for first, second in zip(only(0, 90), only(9, 10), strict=True)]
    assert percentile(counts, 0.5) < 0.005
    assert percentile(counts, 0.95) > 2.5


def test_a_shorter_array_of_an_earlier_version_is_read():
    assert percentile([], 0.5) is None
    assert percentile([4], 0.5) == 0.0025
