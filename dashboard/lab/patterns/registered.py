"""Patterns that apps have registered for their own models, and all patterns by name."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import Any

import psycopg
from django.db import connection, models, transaction
from django.utils.translation import gettext_lazy as _

from dashboard.lab.patterns.pattern import Pattern, Subject
from dashboard.lab.worker import Worker
from tasks import patterns
from tasks.locking import Report, around_each_row
from tasks.support.database import fetch


class Catalogue(Mapping[str, Pattern]):
    """Entries by name, the built-in ones first. It reads the registry each time, because apps register when loaded.

    A registered pattern has an entry if it can make rows (`sample`). A built-in one with its code or its name replaces
    it.
    """

    def __init__(self, built_in: Sequence[Pattern]) -> None:
        self.built_in = {pattern.name: pattern for pattern in built_in}
        self.stood_for = {pattern.stands_for for pattern in built_in}

    def __getitem__(self, name: str) -> Pattern:
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._registered():
            raise KeyError(name)
        return entry(patterns.get(name))

    def __iter__(self) -> Iterator[str]:
        return iter([*self.built_in, *self._registered()])

    def __len__(self) -> int:
        return len(self.built_in) + len(self._registered())

    def _registered(self) -> list[str]:
        known = {*self.built_in, *self.stood_for}
        return [name for name in patterns.names() if name not in known and patterns.get(name).sample]


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
HOLD_SECONDS = 0.01
PAUSE_SECONDS = 0.02
IS_OVER = "SELECT EXISTS (SELECT FROM lab_ledger WHERE kind = 'over') AS over"


class BodyFailed(Exception):
    """The registered code raised for some rows; the message is that of the first."""


def entry(pattern: patterns.Pattern) -> Pattern:
    return Pattern(
        name=pattern.name,
        run=partial(run_registered, pattern),
        subject=pattern.model._meta.label,
        is_safe=True,
        promise=pattern.description
        or _("Each row is handled by one process at a time; rows that others hold are passed by."),
        weakness=_("One transaction for each row; a crash between the work and the commit does it again."),
        use=_("Rows of your own that meet criteria, handled by a button, a command or cron."),
        registered=pattern,
        own_rows=Subject(fill="", touch=touch_of(pattern.model), done=DONE, told=NOT_KNOWN, kept=NOT_KNOWN),
    )


def run_registered(pattern: patterns.Pattern, worker: Worker) -> None:
    """Run until no row meets the criteria; each row's body is one effect in the ledger."""

    def note_races(report: Report) -> None:
        worker.ledger.lost_races = report.lost_races

    @contextmanager
    def noted(row: models.Model) -> Iterator[None]:
        worker.work(item_of(row.pk))
        yield

    chosen = {choice.name: choice.default for choice in pattern.choices}
    with around_each_row(noted):
        report = pattern.run(
            on_locked="skip", limit=None, until_empty=True, dry_run=False, progress=note_races, **chosen
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


def item_of(key: Any) -> int:
    """The number of a row in the ledger: its key if that is an integer, else a hash.

    >>> item_of(7), item_of("a") == item_of("a"), item_of("a") == item_of("b")
    (7, True, False)
    """
    if isinstance(key, int):
        return key
    return int.from_bytes(blake2b(str(key).encode(), digest_size=7).digest(), "big")


def touch_until_over(worker: Worker, rows: Subject) -> None:
    """Lock one row after the other, change it, and hold it a moment, until the run is over."""
    chance = random.Random(f"{worker.plan.seed}/{worker.number}")  # noqa: S311  # nosec B311  pauses, no secret
    while not fetch(connection, IS_OVER)[0]["over"]:
        with transaction.atomic():
            [row] = fetch(connection, rows.touch)
            time.sleep(HOLD_SECONDS * chance.random())
        worker.ledger.note("touch", item_of(row["id"]))
        time.sleep(PAUSE_SECONDS * chance.random())
