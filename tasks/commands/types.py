"""Types of arguments for argparse: each returns the value, or raises an error that says how to write it."""

import json
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.utils import timezone

from tasks.operations import filters
from tasks.support import durations, reading

Value = TypeVar("Value")
FIRST_YEAR, LAST_YEAR = 2000, 9000  # beyond them PostgreSQL stores times that Python cannot read back


def _explained(parse: Callable[[str], Value], written: str) -> Value:
    """Convert a ValueError, whose message argparse would hide."""
    try:
        return parse(written)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def text(written: str) -> str:
    """Any text that PostgreSQL can store."""
    if reading.storage_problem(written):
        raise ArgumentTypeError("not valid UTF-8: check the terminal's encoding.")
    return written


def reason(written: str) -> str:
    """A reason: one line of at most 1000 characters."""
    return _explained(reading.reason, text(written))


def task_id(written: str) -> int:
    """The id of a task, from 1."""
    return _explained(filters.parse_id, written)


def status(written: str) -> str:
    """A status, in any case."""
    return _explained(filters.parse_status, written)


def duration(written: str) -> timedelta:
    """A duration: 90s, 15m, 12h, 7d or 2w."""
    return _explained(durations.parse, written)


def name(written: str) -> str:
    """The name of a queue, a worker or an ordering key: 1 to 255 characters without control characters."""
    return _explained(reading.name, written)


def destination(written: str) -> str:
    """The name of a queue for new or moved tasks: any but those of the demo."""
    return _explained(reading.destination, written)


def seconds(written: str) -> float:
    """A number of seconds, from 0."""
    try:
        number = float(reading.decimal(written))
    except reading.Unreadable:
        number = -1
    if not 0 <= number <= 10**9:
        raise ArgumentTypeError(f"{reading.shown(written)} is not a number of seconds: write one from 0, like 2.5.")
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


def json_array(written: str) -> list[Any]:
    """A JSON array: positional arguments."""
    value = _json(written)
    if not isinstance(value, list):
        raise ArgumentTypeError(f"{written!a} is JSON but not an array: write it like '[1, \"two\"]'.")
    return value


def json_object(written: str) -> dict[str, Any]:
    """A JSON object: keyword arguments."""
    value = _json(written)
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"{written!a} is JSON but not an object: write it like '{{\"name\": 1}}'.")
    return value


def _json(written: str) -> Any:
    try:
        return json.loads(written, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"{written[:200]!a} is not JSON: {error}.") from error


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


def whole_number(written: str, lowest: int, highest: int, what: str) -> int:
    """A whole number in this range; `what` describes it in the error message."""
    return _explained(lambda text: reading.whole_number(text, lowest, highest, what), written)


def _whole(lowest: int, highest: int, what: str) -> Callable[[str], int]:
    """A type for whole numbers in this range; `what` describes them in the error message."""
    return lambda written: whole_number(written, lowest, highest, what)


row_id = _whole(1, filters.BIGGEST_ID, "an id: a whole number from 1")
pid = _whole(1, 2**31 - 1, "a pid: a whole number from 1")
run_id = _whole(1, filters.BIGGEST_ID, "the id of a run: a whole number from 1")
priority = _whole(-100, 100, "a priority: a whole number from -100 to 100, where 100 runs first")
count = _whole(1, 10_000_000, "a count: a whole number from 1 to 10000000")
fence = _whole(1, filters.BIGGEST_ID, "a fence: a whole number from 1")
limit = _whole(0, 2**31 - 1, "a limit: a whole number from 0")
