"""How many tasks to claim at once: never more than can be done within a tenth of a second."""

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
    """

    maximum: int
    value: int = 1
    seconds_per_task: float | None = None

    def learn(self, ran: int, seconds: float) -> None:
        """Note that `ran` tasks took `seconds`. Slower tasks count at once, faster ones little by little."""
        if not ran:
            return
        now = seconds / ran
        before = now if self.seconds_per_task is None else self.seconds_per_task
        self.seconds_per_task = max(now, before + WEIGHT * (now - before))
        fits = int(TARGET_SECONDS / max(self.seconds_per_task, 1e-9))
        self.value = max(1, min(self.maximum, self.value * GROWTH, fits))
