"""The thresholds of "Needs attention": their defaults, and the values that superusers set instead."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from typing import NamedTuple

from django.db import OperationalError, connection
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from dashboard.attention.inbox import is_too_slow
from dashboard.models import RANGES, Threshold
from tasks.commands import types
from tasks.operations.verb import short_waits
from tasks.panels import Snapshot
from tasks.support import audit, durations
from tasks.support.audit import Change, Who

SET = """
INSERT INTO dashboard_threshold AS known (name, value, actor)
VALUES (%(name)s::text, %(value)s::bigint, %(actor)s::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, actor = excluded.actor, at = statement_timestamp()
WHERE known.value <> excluded.value
"""

RESET = "DELETE FROM dashboard_threshold WHERE name = %(name)s::text"


class Default(NamedTuple):
    """A threshold in code: its value, and the sentence that it completes."""

    value: int
    label: Promise


DEFAULTS: dict[str, Default] = {
    "blocked_seconds": Default(5, _("A blocked session is shown after")),
    "blocked_sessions": Default(3, _("Blocked sessions are critical from this number on")),
    "blocked_long_seconds": Default(300, _("A blocked session is critical after")),
    "idle_seconds": Default(60, _("A transaction in which nobody works is shown after")),
    "open_seconds": Default(900, _("Any other transaction is shown after")),
    "held_transactions": Default(1_000_000, _("What holds back VACUUM is shown after this number of transactions")),
    "connections_percent": Default(80, _("Connections are shown from this percentage of all on")),
    "late_seconds": Default(300, _("A due task is late after, in a queue without an objective")),
    "failed_percent": Default(25, _("Failing attempts of a queue are shown from this percentage on")),
    "failed_attempts": Default(20, _("… if at least this number of attempts ended")),
    "failed_seconds": Default(900, _("… within the last (steps of 5 minutes)")),
    "grown_percent": Default(20, _("A table is shown when it has grown in a day by this percentage")),
    "grown_megabytes": Default(1000, _("… and by this number of megabytes")),
}

USUAL = {name: default.value for name, default in DEFAULTS.items()}


def written(name: str, value: int) -> str:
    """The value as `parser` reads it back."""
    return durations.describe(durations.parse(f"{value}s")) if name.endswith("_seconds") else str(value)


def parser(name: str) -> Callable[[str], int]:
    """The reader of a value of this threshold, with an error that says how to write it."""
    least, greatest = RANGES[name]
    if not name.endswith("_seconds"):
        return types.whole_number(least, greatest, f"a whole number from {least} to {greatest}")

    def read(text: str) -> int:
        seconds = int(types.duration(text).total_seconds())
        if not least <= seconds <= greatest:
            raise ArgumentTypeError(
                f"{text!a} is out of range: write {written(name, least)} to {written(name, greatest)}."
            )
        return seconds

    return read


def stored() -> dict[str, Threshold]:
    """The values that people have set, by name."""
    return {row.name: row for row in Threshold.objects.all()}


def values(snapshot: Snapshot) -> Mapping[str, int]:
    """Every threshold by name. While its table is locked, the defaults: lines must not wait for it."""
    try:
        set_by_people = {name: row.value for name, row in snapshot.once(stored).items()}
    except OperationalError as error:
        if not is_too_slow(error):
            raise
        set_by_people = {}
    return {**USUAL, **set_by_people}


def change(name: str, value: int | None, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Set a threshold, or with None give it its default again, and audit it; False if it was like that already.

    Raises KeyError for an unknown name, ValueError for a value out of its range.
    """
    least, greatest = RANGES[name]
    if value is not None and not least <= value <= greatest:
        raise ValueError(name)
    action = "set value=default" if value is None else f"set value={value}"
    with short_waits(rollback=dry_run), connection.cursor() as cursor:
        cursor.execute(RESET if value is None else SET, {"name": name, "value": value, "actor": who.actor})
        changed = bool(cursor.rowcount)
        if changed:
            audit.record(connection, who, action, [Change(f"threshold:{name}")], reason)
    return changed
