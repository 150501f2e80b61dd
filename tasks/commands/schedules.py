"""Shared parts of the commands on schedules: the options for settings, and the display of a schedule."""

from argparse import SUPPRESS
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from tasks.commands import Options, types
from tasks.commands.output import Lines
from tasks.models import Schedule
from tasks.operations import schedules
from tasks.support.recurrence import MISSED, OVERLAP, Forecast

ARGUMENT = ("name", types.name, "The schedule.")
NEVER = "never"


def _end(written: str) -> datetime | None:
    return None if written == NEVER else types.moment(written)


def add_settings(parser: CommandParser) -> None:
    """Add an option for each setting; one that is left out is not among the parsed options."""
    when = parser.add_mutually_exclusive_group()
    cron = "A cron expression of five fields, like '*/5 * * * *'."
    when.add_argument("--cron", type=types.text, default=SUPPRESS, metavar="E", help=cron)
    every = "An interval instead, from 1s: like 90s, 10m or 1d."
    when.add_argument("--every", type=types.duration, default=SUPPRESS, metavar="D", help=every)
    texts = (
        ("--timezone", "timezone", types.text, "Z", "The zone in which the expression is read, like Europe/Berlin."),
        ("--args", "args_", types.json_array, "JSON", "Positional arguments: a JSON array."),
        ("--kwargs", "kwargs_", types.json_object, "JSON", "Keyword arguments: a JSON object."),
        ("--queue", "queue_name", types.destination, "Q", "Another queue than the task declares."),
        ("--priority", "priority", types.priority, "N", "-100 to 100; 100 runs first."),
        ("--ends-at", "ends_at", _end, "ISO", "No tick after this time; `never` takes the end away."),
    )
    for option, name, kind, metavar, text in texts:
        parser.add_argument(option, dest=name, type=kind, default=SUPPRESS, metavar=metavar, help=text)
    missed = "Times missed by more than a minute: skip them, run once for all, or each."
    parser.add_argument("--missed", choices=MISSED, default=SUPPRESS, help=missed)
    overlap = "While its last task is unfinished: skip the tick, queue one behind it, or allow both."
    parser.add_argument("--overlap", choices=OVERLAP, default=SUPPRESS, help=overlap)


SETTINGS = ("cron", "every", "timezone", "missed", "overlap", "args_", "kwargs_", "queue_name", "priority", "ends_at")


def settings_of(options: Options) -> dict[str, Any]:
    """The settings that were given, as `operations.schedules` takes them."""
    return {name.rstrip("_"): options[name] for name in SETTINGS if name in options}


def as_json(row: Schedule, now: datetime) -> dict[str, Any]:
    """A schedule for scripts."""
    names = ("name", "task_path", "cron", "every_seconds", "timezone", "missed", "overlap", "paused", "problem")
    times = ("next_at", "last_at", "ends_at", "ended_at")
    return {
        **{name: getattr(row, name) for name in names},
        **{name: at.isoformat() if (at := getattr(row, name)) else None for name in times},
        "last_outcome": row.last_outcome,
        "last_task_id": row.last_task_id,
        "held_by_task_id": row.held_by_task_id,
        "late": schedules.is_late(row, now),
        "declared": row.declared is not None,
        "overridden": row.overridden,
        "version": row.version,
    }


def at_local(at: datetime | None) -> str | None:
    """A time for people, in the project's own zone."""
    return timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S %Z") if at else None


def as_lines(forecast: Forecast) -> Lines:
    """The next times, and what daylight saving does to those of the coming year."""
    lines = ["Next times:", *(f"  {at_local(moment.at)} {moment.warning}".rstrip() for moment in forecast.next)]
    seen = {moment.at for moment in forecast.next}
    later = [moment for moment in forecast.changes if moment.at not in seen]
    lines += ["When the clock changes:"] if later else []
    return Lines([*lines, *(f"  {at_local(moment.at)} {moment.warning}" for moment in later)])
