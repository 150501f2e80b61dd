"""One pattern: what it runs, what it works on, and what it promises."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import getsource
from textwrap import dedent
from typing import Any

from django.db import models
from django.utils.functional import Promise

from dashboard.lab.bench import Bench
from dashboard.lab.subjects import SUBJECTS, Subject
from tasks import patterns as registry

SOURCES = {
    "orders": "L. Plant, double-checked locking over rows in Django",
    "locks": "an article on a distributed lock in a cache, and PostgreSQL's advisory locks",
    "accounts": "H. Benita, pessimistic and optimistic updates of one row",
    "tasks": "an article on a table of tasks shared by many workers",
}


def code_of(part: Callable[..., Any]) -> str:
    """Its source; nothing of what has none, such as a function that was not written in Python."""
    try:
        return dedent(getsource(part))
    except (OSError, TypeError):
        return ""


def nothing_to_say() -> str:
    """Of most patterns: they run on this database and nothing else."""
    return ""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One entry of the lab.

    Args:
        run: works until nothing is left that this worker could do.
        subject: the rows that it works on, a key of `dashboard.lab.subjects.SUBJECTS`, or whatever `own_rows` are.
        is_safe: whether two workers are kept from doing one item, and whether nobody's write is lost.
        promise, weakness, use: for people who choose a pattern.
        repeats: how many effects one kill may repeat: those of a batch are told to be done together.
        guard: what its schema is to lack; then a run has a second part with it, whose numbers stand beside.
        guard_off: takes the guard out of the schema, as SQL.
        runs_on: tells what keeps its locks, and who shares that.
        stands_for: the registered pattern whose code it runs, which needs no entry of its own.
        code: what it runs of the project beside `run`, for people who want to read it.
        registered, own_rows: of an entry that an app has registered.
    """

    name: str
    run: Callable[[Bench], None]
    subject: str
    is_safe: bool
    promise: Promise | str
    weakness: Promise
    use: Promise
    repeats: int = 1
    guard: Promise | str = ""
    guard_off: str = ""
    runs_on: Callable[[], str] = nothing_to_say
    stands_for: str = ""
    code: tuple[Callable[..., Any], ...] = ()
    registered: registry.Pattern | None = None
    own_rows: Subject | None = None

    @property
    def source(self) -> str:
        """Where the pattern comes from."""
        if self.registered:
            return f"registered by the app {self.registered.model._meta.app_label}"
        return SOURCES["locks" if self.name.startswith(("cache_lock", "advisory_lock")) else self.subject]

    @property
    def source_code(self) -> str:
        """The functions that it runs, as they stand in the project; of a registered one, its body or its run."""
        if self.registered:
            return code_of(self.registered.body or self.registered.run)
        return "\n\n".join(code_of(part) for part in (self.run, *self.code))

    @property
    def rows(self) -> Subject:
        """How its rows are made, and what must be true of them at the end."""
        return self.own_rows or SUBJECTS[self.subject]

    def make_rows(self, number: int) -> None:
        """Of a registered pattern: call its sample, in a process that sees the run's schema alone."""
        if self.registered and self.registered.sample:
            self.registered.sample(number)

    @property
    def models(self) -> Sequence[type[models.Model]]:
        """What a run needs the tables of beside those of Rowlock: the whole app of a registered pattern's model."""
        if not self.registered:
            return ()
        app: Any = self.registered.model._meta.app_config
        return tuple(model for model in app.get_models(include_auto_created=True) if not model._meta.proxy)
