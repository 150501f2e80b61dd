"""One pattern: what it runs, what it works on, and what it promises."""

from collections.abc import Callable
from dataclasses import dataclass

from django.utils.functional import Promise

from dashboard.lab.bench import Bench

SOURCES = {
    "orders": "L. Plant, double-checked locking over rows in Django",
    "locks": "an article on a distributed lock in a cache, and PostgreSQL's advisory locks",
    "accounts": "H. Benita, pessimistic and optimistic updates of one row",
    "tasks": "an article on a table of tasks shared by many workers",
}


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One entry of the lab.

    Args:
        run: works until nothing is left that this worker could do.
        subject: the rows that it works on, a key of `dashboard.lab.subjects.SUBJECTS`.
        is_safe: whether two workers are kept from doing one item, and whether nobody's write is lost.
        promise, weakness, use: for people who choose a pattern.
        repeats: how many effects one kill may repeat: those of a batch are told to be done together.
        prepare: what it changes in its schema before the workers start, as SQL.
    """

    name: str
    run: Callable[[Bench], None]
    subject: str
    is_safe: bool
    promise: Promise
    weakness: Promise
    use: Promise
    repeats: int = 1
    prepare: str = ""

    @property
    def source(self) -> str:
        """Where the pattern comes from."""
        return SOURCES["locks" if self.name.startswith(("cache_lock", "advisory_lock")) else self.subject]
