"""Add, edit, pause, resume, run and delete schedules. Ticks themselves are made in tasks/schedule/ticks.py."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from django.db import IntegrityError, connection
from django.utils.functional import Promise

from tasks.compat import InvalidTask
from tasks.exceptions import InternalTask, InvalidArguments, ScheduleRefused, StaleVersion, UnknownSchedule
from tasks.framework import declaration, payload
from tasks.framework.arguments import encode_call
from tasks.models import Outcome, Schedule
from tasks.models.schedule import LONGEST_NAME
from tasks.operations.enqueue import registered
from tasks.operations.verb import short_waits
from tasks.queue import wakeup
from tasks.schedule import ticks
from tasks.schedule.declared import GONE
from tasks.support import audit, database, reading
from tasks.support.audit import Change, Who
from tasks.support.database import fetch, sqlstate, transaction
from tasks.support.recurrence import MISSED, OVERLAP, Forecast, InvalidSchedule, Recurrence, recurrence
from tasks.support.redaction import is_sealed

RIGHT_TO_EDIT, RIGHT_TO_PAUSE, RIGHT_TO_RUN = "tasks.edit_schedule", "tasks.pause_schedule", "tasks.run_schedule"
WHEN = ("cron", "every_seconds", "timezone")
DEFAULTS: dict[str, Any] = {"cron": None, "every": None, "args": [], "kwargs": {}}
UNIQUE_VIOLATION = "23505"


# The row as `ticks.enqueue` reads it, locked.
TO_RUN = """
SELECT name, task_path, jsonb_build_array(args, kwargs)::text AS call, queue_name, priority, overlap
FROM tasks_schedule WHERE name = %(name)s::text FOR NO KEY UPDATE
"""
RAN = """
WITH ticked AS (
    INSERT INTO tasks_tick (schedule_name, at, outcome, task_id)
    VALUES (%(name)s::text, statement_timestamp(), %(outcome)s::text, %(task_id)s::bigint)
)
UPDATE tasks_schedule SET last_at = statement_timestamp(), last_outcome = %(outcome)s::text,
    last_task_id = %(task_id)s::bigint, held_by_task_id = NULL
WHERE name = %(name)s::text
"""


@dataclass(frozen=True)
class Offer:
    """Upkeep that is off until somebody switches it on: a schedule of a task of ours, under a name of its own."""

    name: str
    task_path: str
    label: str | Promise
    cron: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


OFFERS: dict[str, Offer] = {}


def register_maintenance(offer: Offer) -> None:
    """Offer the upkeep of an app; called once for each, where its tasks are declared."""
    OFFERS[offer.name] = offer


def offers() -> list[Offer]:
    """The upkeep that is not switched on, by name."""
    there = set(Schedule.objects.filter(name__in=OFFERS).values_list("name", flat=True))
    return [offer for name, offer in sorted(OFFERS.items()) if name not in there]


def switch_on_maintenance(name: str, who: Who, *, reason: str = "", dry_run: bool = False) -> Schedule:
    """Make the schedule of an offer, or resume it if it is there. Raises UnknownSchedule."""
    offer = OFFERS.get(name)
    if offer is None:
        raise UnknownSchedule(f"There is no upkeep called {name!r}: it is one of {', '.join(sorted(OFFERS))}.")
    if Schedule.objects.filter(pk=name).exists():
        resume(name, who, reason=reason, dry_run=dry_run)
        return find(name)
    task = declaration.get(offer.task_path)
    settings = {"cron": offer.cron, "kwargs": dict(offer.kwargs)}
    return _insert(name, task.module_path, settings, who, reason=reason, dry_run=dry_run)


def resume_or_switch_on(name: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Resume a schedule, or switch on upkeep that is off; False if it ticks already."""
    if name in {offer.name for offer in offers()}:
        switch_on_maintenance(name, who, reason=reason, dry_run=dry_run)
        return True
    return resume(name, who, reason=reason, dry_run=dry_run)


def find(name: str) -> Schedule:
    """The schedule of this name. Raises UnknownSchedule with similar names."""
    found = Schedule.objects.filter(pk=name).first()
    if found is not None:
        return found
    names = list(Schedule.objects.order_by("name").values_list("name", flat=True)[:1000])
    similar = get_close_matches(name, names, n=3, cutoff=0.5) or names[:5]
    hint = f"Did you mean {' or '.join(similar)}?" if similar else "There is none at all: `add_schedule` adds one."
    raise UnknownSchedule(f"There is no schedule {reading.shown(name)}. {hint}")


def now() -> datetime:
    """The database's clock."""
    return database.now(connection)


def is_late(row: Schedule, at: datetime) -> bool:
    """True if a tick is due for longer than the grace, so that no worker ticks, or none knows the function."""
    return not row.paused and row.next_at is not None and at - row.next_at > ticks.GRACE


def state(row: Schedule, at: datetime) -> str:
    """Describe the state of a schedule at this time: "on", or why it does nothing."""
    if row.paused:
        return f"paused by {row.paused_by or 'raw SQL'}" + (f": {row.problem}" if row.problem else "")
    if row.ended_at is not None:
        return "ended"
    if is_late(row, at):
        return "late: no worker runs, none knows its function, or its last task is unfinished"
    return "on"


def forecast(found: Recurrence, ends_at: datetime | None = None) -> Forecast:
    """The next five times of a recurrence, and what daylight saving changes, from the database's clock on."""
    return found.forecast(now(), ends_at)


def add(
    name: str,
    path: str,
    who: Who,
    settings: Mapping[str, Any],
    *,
    reason: str = "",
    dry_run: bool = False,
) -> Schedule:
    """Make a schedule of a registered task.

    `settings`: `cron` or `every` (10m, seconds, a timedelta), `timezone`, `missed`, `overlap`, `args`, `kwargs`,
    `queue_name`, `priority`, `ends_at`, `paused`. Raises InvalidSchedule, UnknownTask, InternalTask, InvalidArguments,
    Unreadable, and ScheduleRefused if the name is taken.
    """
    if declaration.is_internal(path):
        raise InternalTask(f"{path}: {InternalTask.__doc__}")
    return _insert(name, path, settings, who, reason=reason, dry_run=dry_run)


def edit(
    name: str,
    who: Who,
    settings: Mapping[str, Any],
    *,
    edition: int | None = None,
    reason: str = "",
    dry_run: bool = False,
    action: str = "edit",
) -> bool:
    """Change these settings of a schedule, as in `add`, and no others; False if it was like that already.

    `edition`: that of the row as it was seen. Raises StaleVersion if a setting has changed since, and what `add` does.
    """
    with short_waits(rollback=dry_run):
        row = _locked(name, edition)
        columns = _columns(row.task_path, settings, row)
        changes = {key: value for key, value in columns.items() if getattr(row, key) != value}
        if not changes:
            return False
        words = " ".join(_written(key, value) for key, value in changes.items())
        if row.ended_at is not None or not changes.keys().isdisjoint((*WHEN, "ends_at")):
            changes |= _next(row, changes)
        Schedule.objects.filter(pk=name).update(**changes)
        _record(row, who, f"{action} {words}", reason)
    return True


def revert(name: str, who: Who, *, edition: int | None = None, reason: str = "", dry_run: bool = False) -> bool:
    """Set everything back to what code declares; False if nothing was overridden. Raises ScheduleRefused."""
    declared = find(name).declared
    if declared is None:
        raise ScheduleRefused(f"Schedule {name} was made by an operator: no code declares anything to go back to.")
    settings = {**declared, "every": declared["every_seconds"]}
    del settings["every_seconds"]
    return edit(name, who, settings, edition=edition, reason=reason, dry_run=dry_run, action="back to declared")


def pause(name: str, who: Who, *, edition: int | None = None, reason: str = "", dry_run: bool = False) -> bool:
    """No more ticks until `resume`; False if it was paused already."""
    by = reading.clipped(who.actor, reading.LONGEST_NAME)
    return _switch(name, who, "pause", {"paused": True, "paused_by": by}, edition, reason, dry_run)


def resume(name: str, who: Who, *, edition: int | None = None, reason: str = "", dry_run: bool = False) -> bool:
    """Tick again; `missed` says what becomes of the times of the pause. False if it was not paused."""
    return _switch(name, who, "resume", {"paused": False}, edition, reason, dry_run)


def run_now(name: str, who: Who, *, edition: int | None = None, reason: str = "", dry_run: bool = False) -> int:
    """Enqueue its task at once, even if it is paused or over; returns the task's id. Its next time stays."""
    with short_waits(rollback=dry_run):
        row = _locked(name, edition)
        [to_run] = fetch(connection, TO_RUN, {"name": name})
        registered(row.task_path)
        task = ticks.enqueue(connection, to_run)
        if not task.is_new:
            raise ScheduleRefused(f"Task #{task.id} has the unique key of schedule {name}'s task and is unfinished.")
        task_id = task.id
        with connection.cursor() as cursor:
            cursor.execute(RAN, {"name": name, "task_id": task_id, "outcome": Outcome.MANUAL.value})
        _record(row, who, f"run task_id={task_id}", reason)
    return task_id


def delete(name: str, who: Who, *, edition: int | None = None, reason: str = "", dry_run: bool = False) -> bool:
    """Delete a schedule; its ticks and tasks stay. Raises ScheduleRefused while code declares it."""
    with short_waits(rollback=dry_run):
        row = _locked(name, edition)
        if row.declared is not None and row.problem != GONE:
            raise ScheduleRefused(
                f"Schedule {name} is declared in code and would be back when the next worker starts: pause it, or "
                "remove its declaration first."
            )
        Schedule.objects.filter(pk=name).delete()
        audit.record(connection, who, "delete", [Change(audit.schedule(name), row.version)], reason)
    return True


def _switch(
    name: str, who: Who, action: str, values: Mapping[str, Any], edition: int | None, reason: str, dry_run: bool
) -> bool:
    with short_waits(rollback=dry_run):
        row = _locked(name, edition)
        if row.paused == values["paused"]:
            return False
        Schedule.objects.filter(pk=name).update(**values)
        _record(row, who, action, reason)
    return True


def _locked(name: str, edition: int | None) -> Schedule:
    """The row, locked; a tick holds it for milliseconds. Raises UnknownSchedule, StaleVersion."""
    row = Schedule.objects.select_for_update(no_key=True).filter(pk=name).first() or find(name)
    if edition is not None and row.edition != edition:
        raise StaleVersion(
            f"Schedule {name} changed since you looked (edition {edition}, now {row.edition}): look at it again, then "
            "repeat what you wanted."
        )
    return row


def _record(row: Schedule, who: Who, action: str, reason: str) -> None:
    before = row.version
    row.refresh_from_db(fields=["version"])
    audit.record(connection, who, action, [Change(audit.schedule(row.name), before, row.version)], reason)
    wakeup.summon(connection)


def _insert(name: str, path: str, settings: Mapping[str, Any], who: Who, *, reason: str, dry_run: bool) -> Schedule:
    if problem := reading.name_problem(name, LONGEST_NAME):
        raise reading.Unreadable(f"The name {reading.shown(name)} {problem}.")
    columns = _columns(path, {**DEFAULTS, **settings})
    row = Schedule(name=name, task_path=path, **columns)
    if settings.get("paused"):
        row.paused, row.paused_by = True, reading.clipped(who.actor, reading.LONGEST_NAME)
    with short_waits(rollback=dry_run):
        for key, value in _next(row, {}).items():
            setattr(row, key, value)
        try:
            with transaction(connection):
                row.save(force_insert=True)
        except IntegrityError as error:
            if sqlstate(error) != UNIQUE_VIOLATION:
                raise
            text = f"The name {name} is taken by another schedule: choose another one, or edit that."
            raise ScheduleRefused(text) from error
        row.refresh_from_db()
        change = Change(audit.schedule(name), None, row.version)
        audit.record(connection, who, f"add {row.recurrence.describe()} {path}", [change], reason)
        wakeup.summon(connection)
    return row


def _columns(path: str, settings: Mapping[str, Any], row: Schedule | None = None) -> dict[str, Any]:
    """The columns of these settings, checked; `row`: the schedule that is edited."""
    columns: dict[str, Any] = {}
    if not settings.keys().isdisjoint(("cron", "every", "timezone")):
        cron, every = settings.get("cron"), settings.get("every")
        if row and cron is None and every is None:
            cron, every = row.cron, row.every_seconds
        found = recurrence(cron, every, settings.get("timezone") or (row.timezone if row else None))
        columns = {key: getattr(found, key) for key in WHEN}
    columns |= {key: value for key, value in settings.items() if key not in ("every", "paused", *WHEN)}
    for key, known in (("missed", MISSED), ("overlap", OVERLAP)):
        if columns.get(key, known[0]) not in known:
            raise InvalidSchedule(f"{key} is {columns[key]!r}: write one of {', '.join(known)}.")
    if not columns.keys().isdisjoint(("args", "kwargs", "queue_name", "priority")):
        columns |= _call_columns(path, columns, row)
    return columns


def _call_columns(path: str, columns: Mapping[str, Any], row: Schedule | None) -> dict[str, Any]:
    """Check task, arguments, queue and priority. Returns both columns of a changed call if it is encrypted."""
    try:
        task = registered(path).using(queue_name=columns.get("queue_name"), priority=columns.get("priority"))
    except InvalidTask as error:
        raise InvalidArguments(str(error)) from error
    if columns.get("queue_name"):
        reading.destination(columns["queue_name"])
    before = payload.opened_call(row.args, row.kwargs) if row else ([], {})
    args, kwargs = (columns.get(key, known) for key, known in zip(("args", "kwargs"), before, strict=True))
    call = encode_call(args or [], kwargs or {})
    if problem := declaration.call_problem(task, call.args, call.kwargs):
        raise InvalidArguments(f"{path} cannot be called so: {problem}.")
    task.keys_of(call)
    if not payload.seals(task) or columns.keys().isdisjoint(("args", "kwargs")):
        return {}
    if row and is_sealed(row.kwargs) and before == (call.args, call.kwargs):
        return {"args": row.args, "kwargs": row.kwargs}
    return dict(zip(("args", "kwargs"), json.loads(payload.sealed_call(call).json), strict=True))


def _next(row: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The next time by these settings, or since when there is none."""
    found = Recurrence(*(changes.get(key, getattr(row, key)) for key in WHEN))
    ends_at, at = changes.get("ends_at", row.ends_at), now()
    first = found.first(at)
    is_over = first is None or (ends_at is not None and first > ends_at)
    return {"next_at": None, "ended_at": at} if is_over else {"next_at": first, "ended_at": None}


def _written(key: str, value: object) -> str:
    """A change for the audit; arguments may hold secrets."""
    if key in ("args", "kwargs"):
        return key
    return f"{key}={value.isoformat() if isinstance(value, datetime) else value}"
