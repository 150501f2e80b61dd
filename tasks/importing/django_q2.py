"""The tables of django-q2: tasks of its ORM broker, which are signed pickles, and schedules.

A pickle is decoded without importing or calling anything but times of the standard library, and its signature is not
checked. Whoever can write the table decides the arguments only: which functions may run is declared here.
"""

import ast
import io
import pickle  # nosec B403
import zlib
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from tasks.importing.found import NO_JSON, RUNNING, Found, Timing, Unfit, moment, pages, present, require_table
from tasks.support.recurrence import Recurrence, default_zone

TASKS = """
SELECT id, to_jsonb(task)::text AS row, lock > statement_timestamp() AS is_running
FROM django_q_ormq AS task WHERE id > %(after)s::bigint ORDER BY id LIMIT %(rows)s::int
"""
# A schedule whose repeats are 0 has ended.
SCHEDULES = """
SELECT id, to_jsonb(schedule)::text AS row FROM django_q_schedule AS schedule
WHERE id > %(after)s::bigint AND repeats <> 0 ORDER BY id LIMIT %(rows)s::int
"""
OPTIONS = (
    "hook", "timeout_hook", "failure_hook", "group", "cached", "ack_failure", "iter_count", "iter_cached", "cluster",
    "timeout",
)  # fmt: skip
OPTIONS_OF_SCHEDULE = ("hook", "timeout_hook", "failure_hook", "cluster", "q_options")
MOST_BYTES = 10_000_000  # of an unpacked task
TIMES = {("datetime", kind.__name__): kind for kind in (datetime, timedelta, timezone)}
UNREADABLE = (
    pickle.UnpicklingError, zlib.error, ValueError, TypeError, LookupError, AttributeError, EOFError, OverflowError,
)  # fmt: skip
LAST_DAY_OF_EVERY_MONTH = 28
# Types of schedules: the fields of cron, with those of the next run.
CRON = {
    "H": "{0.minute} * * * *",
    "D": "{0.minute} {0.hour} * * *",
    "W": "{0.minute} {0.hour} * * {0:%w}",
    "M": "{0.minute} {0.hour} {0.day} * *",
    "BM": "{0.minute} {0.hour} {0.day} {1} *",
    "Q": "{0.minute} {0.hour} {0.day} {1} *",
    "Y": "{0.minute} {0.hour} {0.day} {0.month} *",
}
MONTHS = {"BM": 2, "Q": 3}


class Foreign:
    """Stands for a class or function that a pickle names; `path` is its own."""

    path = ""

    def __new__(cls, *args: object, **kwargs: object) -> "Foreign":
        return object.__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take whatever the pickle passes."""

    def __setstate__(self, state: object) -> None:
        """Take whatever the pickle passes."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        named = {"path": f"{module}.{name}", "__module__": module}  # an error message names it so
        return TIMES.get((module, name)) or type(name, (Foreign,), named)


def read() -> Iterator[Found]:
    """The schedules, and the tasks that wait for a cluster."""
    require_table("django_q_schedule", "django-q2")
    for page in pages(SCHEDULES, 0):
        yield _schedule(page["row"])
    for page in pages(TASKS, 0):
        yield _task(page["row"], page["is_running"])


def opened(payload: str) -> dict[str, Any]:
    """The task in a signed payload, with a `Foreign` for each object that is no plain value.

    Raises one of UNREADABLE.
    """
    body = payload.rsplit(":", 2)[0]
    data = urlsafe_b64decode(body.lstrip(".") + "=" * (-len(body.lstrip(".")) % 4))
    if body.startswith("."):
        data = zlib.decompressobj().decompress(data, MOST_BYTES)
    task = _Reader(io.BytesIO(data)).load()
    if not isinstance(task, dict):
        raise ValueError("no task")
    return task


def _task(row: Mapping[str, Any], is_running: bool) -> Found:
    name = str(row["id"])
    if is_running:
        return Found(id=name, function=row["key"], problem=RUNNING)
    try:
        task = opened(row["payload"])
    except UNREADABLE:
        return Found(id=name, function=row["key"], problem="its payload cannot be read")
    function, started = task.get("func"), task.get("started")
    if isinstance(function, type) and issubclass(function, Foreign):
        function = function.path
    return Found(
        id=name,
        function=function if isinstance(function, str) else "?",
        args=task.get("args"),
        kwargs=task.get("kwargs"),
        created_at=started.isoformat() if isinstance(started, datetime) else None,
        options=present(task, OPTIONS),
        problem="it begins a chain: its later steps would be lost" if task.get("chain") else "",
    )


def _schedule(row: Mapping[str, Any]) -> Found:
    common: dict[str, Any] = {"id": f"schedule {row['id']}", "function": row["func"]}
    try:
        common["args"], common["kwargs"] = _arguments(row)
        options = {**row, "q_options": common["kwargs"].pop("q_options", None)}
        common["options"] = present(options, OPTIONS_OF_SCHEDULE)
        if row["schedule_type"] == "O":
            return Found(**common, run_after=row["next_run"])
        return Found(**common, schedule=_timing(row))
    except Unfit as unfit:
        return Found(**common, problem=unfit.reason)


def _arguments(row: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a schedule, which are written like those of a call."""
    try:
        args = ast.literal_eval(row["args"]) if row["args"] else ()
        kwargs = _keywords(row["kwargs"]) if row["kwargs"] else {}
    except (ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise Unfit(NO_JSON) from error
    return args if isinstance(args, tuple) else (args,), kwargs


def _keywords(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        return dict(ast.literal_eval(text))
    call: Any = ast.parse(f"f({text})", mode="eval").body
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}


def _timing(row: Mapping[str, Any]) -> Timing:
    kind, at = row["schedule_type"], moment(row["next_run"])
    if row["repeats"] > 0:
        raise Unfit("it ends after a number of runs")
    if row.get("intended_date_kwarg"):
        raise Unfit("it passes the time that was due as an argument")
    name = row["name"] or f"django-q2 schedule {row['id']}"
    settings: dict[str, Any] = {"timezone": default_zone()}
    if kind == "C":
        return Timing(name, {**settings, "cron": row["cron"]})
    if kind == "I":
        return Timing(name, {"every": timedelta(minutes=row["minutes"] or 1)}, at)
    if kind == "BW":
        return Timing(name, {"every": timedelta(weeks=2)}, at)
    if at is None or kind not in CRON:
        raise Unfit("it has no times")
    local = at.astimezone(ZoneInfo(default_zone()))
    if kind not in ("H", "D", "W") and local.day > LAST_DAY_OF_EVERY_MONTH:
        raise Unfit("its day is not in every month")
    cron = CRON[kind].format(local, _months(kind, local))
    # A cron expression has no seconds.
    before = at.replace(second=0, microsecond=0) - timedelta(seconds=1)
    return Timing(name, {**settings, "cron": cron}, Recurrence(cron=cron, timezone=default_zone()).first(before))


def _months(kind: str, local: datetime) -> str:
    step = MONTHS.get(kind, 12)
    return ",".join(str(month) for month in range((local.month - 1) % step + 1, 13, step))
