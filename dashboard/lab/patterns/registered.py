"""Patterns that apps have registered for their own models, and all patterns by name."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
from django.db import connection, models
from django.utils.translation import gettext_lazy as _

from dashboard.lab.patterns.pattern import Pattern, Rows
from dashboard.lab.worker import Worker, item_of
from tasks import patterns
from tasks.locking import around_each_row


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
        promise=pattern.description
        or _("Each row is handled by one process at a time; rows that others hold are passed by."),
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


def note_left(control: psycopg.Connection, pattern: patterns.Pattern) -> None:
    """Record the rows that are not done."""
    control.execute(NOTE_LEFT, {"items": [item_of(key) for key in keys_left(control, pattern)]})


def touch_of(model: type[models.Model]) -> str:
    """SQL of an outside locker for one row of the model."""
    meta, quote = model._meta, connection.ops.quote_name
    key = str(meta.pk.column)
    plain = [field.column for field in meta.local_concrete_fields if not (field.primary_key or field.generated)]
    column = str(next(iter(plain), key))
    return TOUCH.format(table=quote(meta.db_table), key=quote(key), column=quote(column))
