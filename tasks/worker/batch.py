"""How many tasks to claim at once: never more than can be done within a tenth of a second, and few while there are few.

What one worker takes no other can begin. So it takes one task after the queue was empty, and then twice as many each
time, for as long as it gets as many as it wants: a short task does not wait behind a long one beside an idle worker.
"""

from dataclasses import dataclass

TARGET_SECONDS = 0.1
GROWTH = 8
WEIGHT = 0.3


@dataclass
class BatchSize:
    """The adaptive size: one at a time until run times are known, then what the last ones say, at most `maximum`.

    >>> size = BatchSize(maximum=500)
    >>> size.value
    1
    >>> for _ in range(4): size.learn(ran=size.value, seconds=0.0001 * size.value)
    >>> size.value
    500
    >>> size.learn(ran=1, seconds=2.0)
    >>> size.value
    1
    >>> size = BatchSize(maximum=500, value=500)
    >>> for is_full in (True, True, True): size.note(is_full=is_full)
    >>> size.wanted
    8
    >>> size.note(is_full=False)
    >>> size.wanted
    1
    """

    maximum: int
    value: int = 1
    seconds_per_task: float | None = None
    ramp: int = 1

    @property
    def wanted(self) -> int:
        """How many the next claim asks for."""
        return min(self.value, self.ramp)

    def note(self, *, is_full: bool) -> None:
        """Whether the claim got as many as it asked for: then the queue may hold more."""
        self.ramp = min(2 * self.ramp, self.maximum) if is_full else 1

    def learn(self, ran: int, seconds: float) -> None:
        """Note that `ran` tasks took `seconds`. Slower tasks count at once, faster ones little by little."""
        if not ran:
            return
        now = seconds / ran
        before = now if self.seconds_per_task is None else self.seconds_per_task
        self.seconds_per_task = max(now, before + WEIGHT * (now - before))
        fits = int(TARGET_SECONDS / max(self.seconds_per_task, 1e-9))
        self.value = max(1, min(self.maximum, self.value * GROWTH, fits))
