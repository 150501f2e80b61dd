"""Runs with the numbers that a test says."""

from dashboard.lab.conclusions import Case
from dashboard.lab.measure import Result
from dashboard.lab.worker import Plan


def case(pattern: str, speed: float = 100.0, *, plan: dict[str, int] | None = None, **numbers: object) -> Case:
    """A run of ten items that was clean; `numbers` change what it came to."""
    wanted = Plan(pattern, **{"workers": 4, "items": 10, **(plan or {})})
    known = dict.fromkeys(Result.__dataclass_fields__, 0) | {"stopped": "", "share": {}, "seconds": 1.0}
    known |= {"items": wanted.items, "processed": wanted.items, "items_per_second": speed, **numbers}
    return Case(wanted, Result(**(known | {"pattern": pattern})))


def result(pattern: str, **numbers: object) -> Result:
    """The same without its plan."""
    return case(pattern, **numbers).result
