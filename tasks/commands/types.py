"""Types of arguments for argparse: each returns the value, or raises an error that says how to write it."""

import json
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.utils import timezone

from tasks.models import LONGEST_OBJECTIVE, SLOTS
from tasks.operations import filters
from tasks.support import durations, reading

Value = TypeVar("Value")
FIRST_YEAR, LAST_YEAR = 2000, 9000  # beyond them PostgreSQL stores times that Python cannot read back


def option(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """A type of `parse`, with the message of its ValueError, which argparse would hide."""

    def read(written: str) -> Value:
        try:
            return parse(written)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error

    return read


def text(written: str) -> str:
    """Any text that PostgreSQL can store."""
    if reading.storage_problem(written):
        raise ArgumentTypeError("not valid UTF-8: check the terminal's encoding.")
    return written


def whole_number(lowest: int, highest: int, what: str) -> Callable[[str], int]:
    """A type for whole numbers in this range; `what` describes them in the error message."""
    return option(lambda written: reading.whole_number(written, lowest, highest, what))


reason = option(lambda written: reading.reason(text(written)))  # one line of at most 1000 characters
task_id = option(filters.parse_id)
status = option(filters.parse_status)  # in any case
due = option(filters.parse_due)
failure = option(filters.parse_failure)
duration = option(durations.parse)  # 90s, 15m, 12h, 7d or 2w
name = option(reading.name)  # of a queue, a worker or an ordering key
destination = option(reading.destination)  # the queue of new or moved tasks: any but those of the demo
row_id = whole_number(1, filters.BIGGEST_ID, "an id: a whole number from 1")
pid = whole_number(1, 2**31 - 1, "a pid: a whole number from 1")
run_id = whole_number(1, filters.BIGGEST_ID, "the id of a run: a whole number from 1")
priority = whole_number(-100, 100, "a priority: a whole number from -100 to 100, where 100 runs first")
count = whole_number(1, 10_000_000, "a count: a whole number from 1 to 10000000")
fence = whole_number(1, filters.BIGGEST_ID, "a fence: a whole number from 1")
limit = whole_number(0, 2**31 - 1, "a limit: a whole number from 0")


def at_once(written: str) -> int | None:
    """How many may run at once; None for `none`."""
    return None if written == "none" else whole_number(1, SLOTS, f"a whole number from 1 to {SLOTS}, or none")(written)


def rate(written: str) -> str | None:
    """Starts in a period, like 100/m; None for `none`."""
    if written != "none" and durations.rate_of(written) is None:
        raise ArgumentTypeError(
            f"{reading.shown(written)} is not a rate: write starts and their period, like 5/s, 100/m, 1000/h or 50/d, "
            "or none."
        )
    return None if written == "none" else written


def objective(written: str) -> timedelta | None:
    """How long a due task may wait, like 5m; None for `none`."""
    if written == "none":
        return None
    found = duration(written)
    if not timedelta(seconds=1) <= found <= LONGEST_OBJECTIVE:
        raise ArgumentTypeError(f"{written!a} is no objective: write 1s to {LONGEST_OBJECTIVE.days}d, or none.")
    return found


def count_up_to(most: int) -> Callable[[str], int]:
    """A type for a count with a limit of its own."""
    return whole_number(1, most, f"a count: a whole number from 1 to {most}")


def seconds(written: str) -> float:
    """A number of seconds, from 0."""
    try:
        number = float(reading.decimal(written))
    except reading.Unreadable:
        number = -1
    if not 0 <= number <= 10**9:
        raise ArgumentTypeError(f"{reading.shown(written)} is not a number of seconds: write one from 0, like 2.5.")
    return number


def interval(written: str) -> float:
    """Seconds between two pictures, from 0.1."""
    number = seconds(written)
    if not 0.1 <= number <= 86_400:
        raise ArgumentTypeError(f"{reading.shown(written)} is not an interval: write seconds from 0.1 to 86400.")
    return number


def moment(written: str) -> datetime:
    """A time in ISO 8601, or `now`; without an offset it is in the project's TIME_ZONE."""
    if written == "now":
        return timezone.now()
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        at = None
    if at is None or not FIRST_YEAR <= at.year <= LAST_YEAR:
        raise ArgumentTypeError(
            f"{written!a} is not a time from {FIRST_YEAR} to {LAST_YEAR}: write it like 2030-01-31T03:00:00+02:00, "
            "or write now."
        )
    return at if at.tzinfo else timezone.make_aware(at, timezone.get_default_timezone())


def _json_of(kind: type, what: str) -> Callable[[str], Any]:
    def read(written: str) -> Any:
        try:
            value = json.loads(written, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ArgumentTypeError(f"{written[:200]!a} is not JSON: {error}.") from error
        if not isinstance(value, kind):
            raise ArgumentTypeError(f"{written!a} is JSON but not {what}.")
        return value

    return read


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


json_array = _json_of(list, "an array: write it like '[1, \"two\"]'")  # positional arguments
json_object = _json_of(dict, "an object: write it like '{\"name\": 1}'")  # keyword arguments
json_value = _json_of(object, "a value")
