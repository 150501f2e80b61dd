"""A CSV file of jobs with the columns of Solid Queue's table `solid_queue_jobs`.

Needed are `id`, `class_name` and `arguments`: the JSON of Active Job, or an array or object of plain arguments. The
others may be missing.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.importing.found import NO_JSON, Found, SourceMissing, Unfit, present

NEEDED = ("id", "class_name", "arguments")
NO_COUNTERPART = ("concurrency_key", "batch_id")
LONGEST_FIELD = 10_000_000
# Keys by which Active Job marks a hash; the first one those that are keyword arguments.
MARKS = ("_aj_ruby2_keywords", "_aj_symbol_keys", "_aj_hash_with_indifferent_access")
RUBY = "_aj_"


def read(file: Path) -> Iterator[Found]:
    """The jobs that are not finished."""
    csv.field_size_limit(LONGEST_FIELD)
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.DictReader(lines)
            if missing := [name for name in NEEDED if name not in (rows.fieldnames or ())]:
                raise SourceMissing(f"{file} has no column {', '.join(missing)}: export it with a header line.")
            yield from (_found(row) for row in rows if not row.get("finished_at"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceMissing(f"{file} cannot be read: {error}.") from error


def _found(row: Mapping[str, str]) -> Found:
    common: dict[str, Any] = {
        "id": row.get("active_job_id") or row["id"],  # ids of two installations may be equal
        "function": row["class_name"],
        "queue_name": row.get("queue_name") or None,
        "options": present(row, NO_COUNTERPART),
    }
    try:
        args, kwargs = _arguments(json.loads(row["arguments"] or "[]"))
        # There, 0 comes before 1.
        priority = -int(row.get("priority") or 0)
        run_after, created_at = (_time(row.get(column)) for column in ("scheduled_at", "created_at"))
    except Unfit as unfit:
        return Found(**common, problem=unfit.reason)
    except ValueError as error:
        return Found(**common, problem=NO_JSON if isinstance(error, json.JSONDecodeError) else "it cannot be read")
    return Found(**common, args=args, kwargs=kwargs, priority=priority, run_after=run_after, created_at=created_at)


def _time(written: str | None) -> str | None:
    """An ISO time; Rails writes UTC without saying so."""
    if not written:
        return None
    at = datetime.fromisoformat(written.removesuffix(" UTC"))
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()


def _arguments(stored: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of Active Job's JSON, of an array, or of an object."""
    if isinstance(stored, dict) and "job_class" not in stored:
        return [], stored
    arguments = stored["arguments"] if isinstance(stored, dict) else stored
    if not isinstance(arguments, list):
        raise Unfit(NO_JSON)
    kwargs: dict[str, Any] = {}
    if arguments and isinstance(arguments[-1], dict) and MARKS[0] in arguments[-1]:
        kwargs = arguments.pop()
    return [_plain(value) for value in arguments], _plain(kwargs)


def _plain(value: Any) -> Any:
    """The value without the marks of a hash. Raises Unfit for an object of Ruby."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _plain(each) for key, each in value.items() if key not in MARKS}
    if any(key.startswith(RUBY) for key in plain):
        raise Unfit("an argument is an object of Ruby")
    return plain
