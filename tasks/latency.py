"""Histograms of wait and run times: percentiles without storing every single time.

The rollup stores one array of counts for each minute, queue and shard. The last bucket has no upper bound.
"""

from collections import Counter
from collections.abc import Sequence

BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
BUCKETS = len(BOUNDS_SECONDS) + 1


def as_array(counts: Counter[int]) -> str:
    """The counts as a PostgreSQL array, one for each bucket; buckets are numbered as by `width_bucket`.

    >>> as_array(Counter([0, 2, 2]))
    '{1,0,2,0,0,0,0,0,0,0,0,0,0,0,0,0}'
    """
    return f"{{{','.join(str(counts[number]) for number in range(BUCKETS))}}}"


def percentile(counts: Sequence[int], share: float) -> float | None:
    """The time in seconds below which this share lies, interpolated within its bucket; None without counts.

    Times beyond the last bound are reported as that bound.

    >>> percentile([0] * 16, 0.95) is None, percentile([10] + [0] * 15, 0.5), percentile([0] * 15 + [3], 0.5)
    (True, 0.0025, 1800.0)
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0
    for number, count in enumerate(counts):
        if count and below + count >= wanted:
            return _within(number, (wanted - below) / count)
        below += count
    return BOUNDS_SECONDS[-1]


def _within(bucket: int, share: float) -> float:
    if bucket >= len(BOUNDS_SECONDS):
        return BOUNDS_SECONDS[-1]
    low = BOUNDS_SECONDS[bucket - 1] if bucket else 0.0
    return low + share * (BOUNDS_SECONDS[bucket] - low)
