"""The parameters of one run, checked before anything starts; the same seed gives the same plan."""

import random
from dataclasses import asdict, dataclass
from typing import Any, Self

from dashboard.lab.schema import LabRefused

# (minimum, maximum) of each number.
LIMITS = {
    "workers": (1, 16),
    "items": (1, 20_000),
    "work_ms": (0, 5_000),
    "kill": (0, 20),
    "outside_lockers": (0, 8),
    "remote_ms": (0, 10_000),
    "seed": (0, 2**31 - 1),
    "seconds": (1, 600),
}


@dataclass(frozen=True)
class Plan:
    """The parameters of one run.

    Args:
        pattern: its name in `dashboard.lab.patterns`.
        workers: processes that start together.
        items: rows to handle, or operations on the accounts.
        work_ms: duration of each item's work, while the pattern holds its locks.
        kill: number of workers ended with SIGKILL, at moments that `seed` decides; each is replaced.
        outside_lockers: processes of another kind that lock and change the same rows.
        remote_ms: duration of a slow call to another service, which cannot be rolled back.
        seconds: maximum duration of the run.
        alongside: start even if another run is active on this database; the numbers of both suffer.
    """

    pattern: str
    workers: int = 4
    items: int = 200
    work_ms: int = 5
    kill: int = 0
    outside_lockers: int = 0
    remote_ms: int = 0
    seed: int = 1
    seconds: int = 60
    alongside: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise LabRefused(f"{name.replace('_', ' ')} is a number from {least} to {most}, not {value}.")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def kills(self) -> list[tuple[int, int]]:
        """The kills in order, as (number of effects before it, number of the worker).

        >>> Plan("unsafe", items=100, kill=2, seed=7).kills() == Plan("unsafe", items=100, kill=2, seed=7).kills()
        True
        """
        chance = random.Random(self.seed)  # noqa: S311  # nosec B311  the same seed, the same plan
        # Not before the first effect has begun: no worker would be in the middle of one.
        moments = sorted(max(1, int(self.items * chance.uniform(0.05, 0.7))) for _ in range(self.kill))
        return [(moment, chance.randrange(self.workers)) for moment in moments]
