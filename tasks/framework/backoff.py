"""Backoff before the next attempt: pure functions, in seconds."""

import random as default_random

BASE_SECONDS = 2.0
CAP_SECONDS = 3600.0


def exponential(attempt: int, *, random: float | None = None) -> float:
    """Seconds to wait after attempt number `attempt` failed: doubling from 2 s, at most an hour, half of it jitter.

    `random` in [0, 1) fixes the jitter. Without jitter, tasks that failed together would fail together again.

    >>> [exponential(attempt, random=0.5) for attempt in (1, 2, 3)]
    [1.5, 3.0, 6.0]
    >>> exponential(40, random=0.999) <= CAP_SECONDS
    True
    """
    whole = min(CAP_SECONDS, BASE_SECONDS * 2 ** (min(attempt, 30) - 1))
    jitter = default_random.random() if random is None else random  # noqa: S311  not for secrets
    return whole * (0.5 + jitter / 2)
