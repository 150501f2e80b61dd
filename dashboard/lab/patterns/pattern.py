"""One pattern of the lab, built-in or registered by an app, and its rows.

Rows are SQL that makes them, disturbs them, and checks them at the end.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import getsource
from textwrap import dedent
from typing import Any

import psycopg
from django.db import models
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from psycopg import sql

from dashboard.lab.worker import Worker, item_of
from tasks import patterns
from tasks.locking import around_each_row
from tasks.models import Task

FILL_TASKS = """
INSERT INTO tasks_task (task_path, queue_name, max_attempts)
SELECT 'dashboard.lab.work', 'lab', 100 FROM generate_series(1, %(items)s)
"""

# An outside locker's work on the same rows: it locks one, and changes a column that no pattern means to write.
TOUCH_TASK = """
UPDATE tasks_task SET kwargs = jsonb_build_object('touched', coalesce((kwargs ->> 'touched')::int, 0) + 1)
WHERE id = (SELECT id FROM tasks_task ORDER BY random() LIMIT 1 FOR NO KEY UPDATE) RETURNING id
"""

TASKS_DONE = "SELECT id FROM tasks_task WHERE status = 'COMPLETED'"

# The acknowledged writes that are really there.
TOUCHES_KEPT = "SELECT coalesce(sum((kwargs ->> 'touched')::int), 0)::int FROM tasks_task"
TOUCHES = "SELECT count(*)::int FROM lab_ledger WHERE kind = 'touch'"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One kind of rows, and SQL for the lab's schema."""

    name: str
    source: str  # where its patterns come from
    fill: str = ""  # makes `%(items)s` rows
    touch: str  # the change of an outside locker to one row
    done: str  # ids of the rows that are done according to the database
    acknowledged: str  # the number of acknowledged changes
    kept: str  # the number of those that are there at the end
    following: Callable[[], "models.QuerySet[Any]"] | None = None  # the rows that a pattern works on now or next
    work: str = "effect"  # the kind of the ledger's lines about work; "attempt" if the effect has lines of its own


TASKS = Rows(
    name="tasks",
    source="an article on a table of tasks shared by many workers",
    fill=FILL_TASKS,
    touch=TOUCH_TASK,
    done=TASKS_DONE,
    acknowledged=TOUCHES,
    kept=TOUCHES_KEPT,
    following=lambda: Task.objects.unfinished().order_by("pk"),
)

SLOTS = 3  # the limit of the patterns that keep one


@dataclass(frozen=True)
class Pattern:
    """One entry of the lab. `promise`, `weakness` and `use` are for people who choose a pattern."""

    run: Callable[[Worker], None]  # works until this worker finds nothing left to do; it has the pattern's name
    rows: Rows
    promise: Promise | str
    weakness: Promise
    use: Promise
    is_safe: bool = True  # no two workers do one item, and no write is lost
    repeats: int = 1  # effects that one kill may repeat, because a batch is recorded as done all at once
    taken: str = ""  # for a pattern that keeps a limit of SLOTS: SQL for the number of slots that are taken
    guard: Promise | str = ""  # a guard that its schema lacks; a second part of the run has it, for comparison
    needs: str = ""  # SQL that makes a further table of its schema
    guard_off: str = ""  # SQL that removes the guard from the schema
    runs_on: Callable[[], str] = str  # describes the backend of its locks, and who shares it; by default nothing
    stands_for: str = ""  # the registered pattern whose code it runs, which gets no entry of its own
    code: tuple[Callable[..., Any], ...] = ()  # other functions of the project that it runs, to show to readers
    registered: patterns.Pattern | None = None  # what an app has registered

    @property
    def name(self) -> str:
        return self.registered.name if self.registered else self.run.__name__

    @property
    def subject(self) -> str:
        return self.rows.name

    @property
    def source_code(self) -> str:
        """Source code of the functions that it runs; for a registered pattern its body or its run."""
        if self.registered:
            return code_of(self.registered.body or self.registered.run)
        return "\n\n".join(code_of(part) for part in (self.run, *self.code))

    @property
    def models(self) -> Sequence[type[models.Model]]:
        """Further models whose tables a run needs: for a registered pattern its model's whole app."""
        if not self.registered:
            return ()
        app: Any = self.registered.model._meta.app_config
        return tuple(model for model in app.get_models(include_auto_created=True) if not model._meta.proxy)


def code_of(part: Callable[..., Any]) -> str:
    """Its source code; empty if it has none, for example a function not written in Python."""
    try:
        return dedent(getsource(part))
    except (OSError, TypeError):
        return ""


class Catalogue(Mapping[str, Pattern]):
    """Entries by name, the built-in ones first. It reads the registry each time, because apps register when loaded.

    A registered pattern has an entry if it can make rows (`sample`). A built-in one with its code or its name replaces
    it.
    """

    def __init__(self, built_in: Sequence[Pattern]) -> None:
        self.built_in = {pattern.name: pattern for pattern in built_in}
        self.known = {*self.built_in, *(pattern.stands_for for pattern in built_in)}

    def all(self) -> dict[str, Pattern]:
        registered = [patterns.get(name) for name in patterns.names() if name not in self.known]
        return self.built_in | {pattern.name: entry(pattern) for pattern in registered if pattern.sample}

    def __getitem__(self, name: str) -> Pattern:
        return self.all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())


# The work of an outside locker: it locks a row and changes nothing.
TOUCH = """
UPDATE {table} SET {column} = {column}
WHERE {key} = (SELECT {key} FROM {table} ORDER BY random() LIMIT 1 FOR NO KEY UPDATE) RETURNING {key} AS id
"""
# A row that still meets the criteria at the end is not done, whatever the code reported.
NOTE_LEFT = "INSERT INTO lab_ledger (kind, worker, item) SELECT 'left', -1, unnest(%(items)s::bigint[])"
DONE = """
SELECT item AS id FROM lab_ledger WHERE kind = 'effect' EXCEPT SELECT item FROM lab_ledger WHERE kind = 'left'
"""
NOT_KNOWN = "SELECT 0"


class BodyFailed(Exception):
    """The registered code raised for some rows; the message is that of the first."""


def entry(pattern: patterns.Pattern) -> Pattern:
    options = pattern.model._meta
    return Pattern(
        run=partial(run_registered, pattern),
        rows=Rows(
            name=options.label,
            source=f"registered by the app {options.app_label}",
            touch=touch_of(pattern.model),
            done=DONE,
            acknowledged=NOT_KNOWN,
            kept=NOT_KNOWN,
        ),
        promise=pattern.description or _("One process at a time handles each row; rows that others hold are skipped."),
        weakness=_("One transaction for each row; a crash between the work and the commit does it again."),
        use=_("Rows of your own that meet criteria, handled by a button, a command or cron."),
        registered=pattern,
    )


def run_registered(pattern: patterns.Pattern, worker: Worker) -> None:
    """Run until no row meets the criteria; each row's body is one effect in the ledger."""

    @contextmanager
    def noted(row: models.Model) -> Iterator[None]:
        worker.work(item_of(row.pk))
        yield

    chosen = {choice.name: choice.default for choice in pattern.choices}
    with around_each_row(noted):
        report = pattern.run(
            on_locked="skip", limit=None, until_empty=True, dry_run=False, progress=worker.note_races, **chosen
        )
    if report.failure:
        raise BodyFailed(next(iter(report.problems), report.failure))


def keys_left(control: psycopg.Connection, pattern: patterns.Pattern) -> list[Any]:
    """The primary keys of the rows that meet the criteria, in the schema that the session sees."""
    statement, params = pattern.queryset.order_by().values_list("pk").query.sql_with_params()
    return [key for (key,) in psycopg.ClientCursor(control).execute(statement, params)]


def touch_of(model: type[models.Model]) -> str:
    meta = model._meta
    key = str(meta.pk.column)
    plain = [field.column for field in meta.local_concrete_fields if not (field.primary_key or field.generated)]
    names = {"table": meta.db_table, "key": key, "column": str(next(iter(plain), key))}
    return sql.SQL(TOUCH).format(**{part: sql.Identifier(name) for part, name in names.items()}).as_string()
