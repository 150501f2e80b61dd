"""One task or schedule of another queue, as its reader found it, and the pages in which readers read tables."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection

from tasks.exceptions import RowlockError
from tasks.support.database import fetch

PAGE_ROWS = 2000
IS_THERE = "SELECT to_regclass(%(table)s::text) IS NOT NULL AS is_there, current_setting('search_path') AS path"

RUNNING = "it runs, or its worker died: the other queue decides"
NO_JSON = "its arguments are no JSON"


class SourceMissing(RowlockError):
    """The tables or the file of the other queue are not there."""


class Unfit(Exception):
    """A row that cannot be imported: the reason, equal for all such rows, and the detail of this one."""

    def __init__(self, reason: str, detail: object = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, str(detail)


class Timing(NamedTuple):
    """A schedule: its name, settings of `operations.schedules.add`, and its next time (None: by those settings)."""

    name: str
    settings: Mapping[str, Any]
    first_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """A row of another queue.

    `id` is its own there, and `function` the name that it has there. Times are ISO 8601. `schedule` is None for a task.
    `options` names what it has and Rowlock has not. A `problem` keeps the whole row from being imported.
    """

    id: str
    function: str
    args: Any = ()
    kwargs: Any = field(default_factory=dict)
    queue_name: str | None = None
    priority: int | None = None
    run_after: str | None = None
    created_at: str | None = None
    ordering_key: str | None = None
    unique_key: str | None = None
    schedule: Timing | None = None
    options: Sequence[str] = ()
    problem: str = ""


def require_table(table: str, package: str) -> None:
    """Raise SourceMissing unless the session's search path leads to this table."""
    [found] = fetch(connection, IS_THERE, {"table": table})
    if not found["is_there"]:
        raise SourceMissing(
            f"There is no table {table} on the search path ({found['path']}): connect to the database of {package}, or "
            "put the schema with its tables behind Rowlock's own on the path."
        )


def pages(statement: str, after: object) -> Iterator[dict[str, Any]]:
    """Every row of a statement that reads up to `rows` rows after the id `after`: its columns `id` and `row`, a JSON
    object.
    """
    while True:
        rows = fetch(connection, statement, {"after": after, "rows": PAGE_ROWS})
        for row in rows:
            yield {**row, "row": json.loads(row["row"])}
        if len(rows) < PAGE_ROWS:
            return
        after = rows[-1]["id"]


def moment(written: str | None) -> datetime | None:
    """The time of a JSON text."""
    return datetime.fromisoformat(written) if written else None


def present(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The names of those columns that hold something."""
    return [name for name in names if row.get(name) not in (None, "", "{}", [], {}, 0, False)]
