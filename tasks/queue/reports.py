"""Write what running tasks tell, for many at once and at most once a second for each.

A report matches its task by id and attempt, and by the worker unless the attempt has ended. So a worker that has lost
its task writes nothing over what the next attempt tells.
"""

import json
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from tasks.framework import payload
from tasks.framework.context import LONGEST_LINE, LONGEST_MESSAGE, MOST_LINES, Line, Report
from tasks.support.database import Connection, execute, fetch
from tasks.support.reading import storable

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
REST_SECONDS = 5.0  # after an error, as the endings of tasks must not wait for a locked table of reports
MOST_WAITING = 10_000  # reports of ended attempts that could not be written yet

WRITE_PROGRESS = """
INSERT INTO tasks_progress AS kept
    (task_id, attempt, fraction, message, state, first_fraction, first_at, updated_at)
SELECT task.id, task.attempt, told.fraction, told.message, told.state::jsonb, told.first_fraction,
    statement_timestamp() - told.first_ago * interval '1 microsecond', statement_timestamp()
FROM unnest(%(ids)s::bigint[], %(attempts)s::int[], %(fractions)s::float8[], %(messages)s::text[], %(states)s::text[],
        %(first_fractions)s::float8[], %(first_ago)s::bigint[])
    AS told (id, attempt, fraction, message, state, first_fraction, first_ago)
JOIN tasks_task AS task ON task.id = told.id AND task.attempt = told.attempt
    AND (task.claimed_by = %(worker_id)s::text OR task.claimed_by IS NULL)
ORDER BY task.id
ON CONFLICT (task_id) DO UPDATE SET
    attempt = EXCLUDED.attempt, fraction = coalesce(EXCLUDED.fraction, kept.fraction),
    message = CASE WHEN EXCLUDED.fraction IS NULL THEN kept.message ELSE EXCLUDED.message END,
    state = coalesce(EXCLUDED.state, kept.state),
    first_fraction = EXCLUDED.first_fraction, first_at = EXCLUDED.first_at, updated_at = EXCLUDED.updated_at
"""
WRITE_LINES = """
INSERT INTO tasks_attemptlog (task_id, number, at, level, message)
SELECT task.id, task.attempt, statement_timestamp() - line.ago * interval '1 microsecond', line.level, line.message
FROM unnest(%(ids)s::bigint[], %(attempts)s::int[], %(ago)s::bigint[], %(levels)s::text[], %(messages)s::text[])
    WITH ORDINALITY AS line (id, attempt, ago, level, message, place)
JOIN tasks_task AS task ON task.id = line.id AND task.attempt = line.attempt
    AND (task.claimed_by = %(worker_id)s::text OR task.claimed_by IS NULL)
ORDER BY line.place
"""
# The latest lines of an attempt stay.
TRIM_LINES = """
DELETE FROM tasks_attemptlog USING unnest(%(ids)s::bigint[], %(attempts)s::int[]) AS full_one (id, attempt)
WHERE tasks_attemptlog.task_id = full_one.id AND tasks_attemptlog.number = full_one.attempt
  AND tasks_attemptlog.id <= (
    SELECT line.id FROM tasks_attemptlog AS line
    WHERE line.task_id = full_one.id AND line.number = full_one.attempt
    ORDER BY line.id DESC OFFSET %(most)s::int LIMIT 1)
"""
GOES_ON = """
SELECT task.id FROM tasks_task AS task
JOIN unnest(%(ids)s::bigint[], %(attempts)s::int[]) AS asked (id, attempt)
    ON task.id = asked.id AND task.attempt = asked.attempt
WHERE task.claimed_by = %(worker_id)s::text AND task.cancel_requested_at IS NULL
"""
STATE = "SELECT state FROM tasks_progress WHERE task_id = %(id)s::bigint"
EARLIER_SPAN = """
SELECT traceparent FROM tasks_attempt WHERE task_id = %(id)s::bigint AND traceparent IS NOT NULL
ORDER BY id DESC LIMIT 1
"""


def checkpoint(connection: Connection, task_id: int) -> Any:
    """The value that an earlier attempt of the task has kept, or None. Raises PayloadLocked if no key opens it."""
    rows = fetch(connection, STATE, {"id": task_id})
    value = rows[0]["state"] if rows else None
    return payload.opened(json.loads(value) if isinstance(value, str) else value)


def earlier_span(connection: Connection, task_id: int) -> str | None:
    """The `traceparent` of the task's latest attempt that failed and was recorded."""
    rows = fetch(connection, EARLIER_SPAN, {"id": task_id})
    return rows[0]["traceparent"] if rows else None


class Reports:
    """The reports of one worker process: handlers add to them, one thread at a time writes them."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self._lock = threading.Lock()
        self._live: set[Report] = set()
        self._ended: list[Report] = []
        self._counts: dict[Report, int] = {}  # lines written
        self.written_at = 0.0  # by `time.monotonic()`
        self.rests_until = 0.0

    def begin(self, report: Report) -> None:
        """Keep the report of an attempt that tells something."""
        with self._lock:
            self._live.add(report)

    def end(self, report: Report, *, has_failed: bool) -> None:
        """Note that the attempt has ended; what it told last is written by the next `write`."""
        report.ended, report.has_failed = time.monotonic(), has_failed
        with self._lock:
            self._live.discard(report)
            if report.has_news and len(self._ended) < MOST_WAITING:
                self._ended.append(report)
            elif report.has_news:
                logger.error("what task %s told is dropped: too much could not be written", report.task_id)

    def is_due(self) -> bool:
        """True if something is to be written or asked now."""
        now = time.monotonic()
        if not (self._ended or self._live) or now < self.rests_until:
            return False
        if self._ended:
            return True
        if now - self.written_at < EVERY_SECONDS:
            return False
        with self._lock:
            return any(report.has_news or report.is_watched for report in self._live)

    def write(self, connection: Connection) -> None:
        """Write what is due, and ask which of the watched tasks go on. What the database refuses for ever is dropped.

        Raises psycopg.Error for all else, and keeps what it could not write.
        """
        if not self.is_due():
            return
        with self._lock:
            ended, live = self._ended, list(self._live)
            self._ended = []
        is_time = time.monotonic() - self.written_at >= EVERY_SECONDS
        changed = [report for report in (*ended, *(live if is_time else ())) if report.has_news]
        for report in changed:
            report.is_changed = False  # before it is read, so that nothing told meanwhile is missed
        try:
            self._write(connection, changed)
            if is_time:
                self._ask(connection, [report for report in live if report.is_watched])
                self.written_at = time.monotonic()
        except psycopg.DataError as error:
            logger.error("what tasks %s told cannot be stored: %s", [one.task_id for one in changed], error)
            for report in changed:
                report.lines.clear()
        except psycopg.Error:
            self.rests_until = time.monotonic() + REST_SECONDS
            for report in changed:
                report.is_changed = True
            with self._lock:
                self._ended = [*ended, *self._ended]
            raise

    def _write(self, connection: Connection, reports: Sequence[Report]) -> None:
        told = [report for report in reports if report.told or report.state is not None]
        if told:
            execute(connection, WRITE_PROGRESS, {"worker_id": self.worker_id, **progress_params(told)})
        kept = {report: [line for line in tuple(report.lines) if report.may_keep(line)] for report in reports}
        lines = [(report, line) for report, of_it in kept.items() for line in of_it]
        if lines:
            execute(connection, WRITE_LINES, {"worker_id": self.worker_id, **line_params(lines)})
            self._trim(connection, kept)
        for report, of_it in kept.items():
            forget(report, of_it)

    def _trim(self, connection: Connection, kept: dict[Report, list[Line]]) -> None:
        for report, of_it in kept.items():
            self._counts[report] = self._counts.get(report, 0) + len(of_it)
        full = [report for report in kept if self._counts[report] > MOST_LINES]
        if full:
            execute(connection, TRIM_LINES, {**keys_of(full), "most": MOST_LINES})
        self._counts = {report: count for report, count in self._counts.items() if report.ended is None}

    def _ask(self, connection: Connection, watched: Sequence[Report]) -> None:
        if watched:
            rows = fetch(connection, GOES_ON, {"worker_id": self.worker_id, **keys_of(watched)})
            going_on = {row["id"] for row in rows}
            for report in watched:
                report.is_cancelled = report.task_id not in going_on


def forget(report: Report, written: Sequence[Line]) -> None:
    """Drop written lines; those withheld as long as the task is short stay."""
    for line in written:
        try:
            report.lines.remove(line)
        except ValueError:  # pushed out by newer ones
            continue


def keys_of(reports: Iterable[Report]) -> dict[str, Any]:
    reports = list(reports)
    return {"ids": [report.task_id for report in reports], "attempts": [report.attempt for report in reports]}


def progress_params(reports: Sequence[Report]) -> dict[str, Any]:
    """The parameters of WRITE_PROGRESS, without the worker."""
    now = time.monotonic()
    return {
        **keys_of(reports),
        "fractions": [report.told[0] if report.told else None for report in reports],
        "messages": [
            storable(report.redact(report.told[1]), LONGEST_MESSAGE) if report.told else "" for report in reports
        ],
        "states": [report.state for report in reports],
        "first_fractions": [report.first[0] if report.first else None for report in reports],
        "first_ago": [int((now - report.first[1]) * 1e6) if report.first else None for report in reports],
    }


def line_params(lines: Sequence[tuple[Report, Line]]) -> dict[str, Any]:
    """The parameters of WRITE_LINES, without the worker."""
    now = time.monotonic()
    return {
        **keys_of(report for report, _ in lines),
        "ago": [int((now - line.at) * 1e6) for _, line in lines],
        "levels": [storable(line.level, 40) for _, line in lines],
        "messages": [shortened(storable(report.redact(line.text))) for report, line in lines],
    }


def shortened(text: str) -> str:
    """At most LONGEST_LINE bytes of the text."""
    data = text.encode()
    return text if len(data) <= LONGEST_LINE else data[: LONGEST_LINE - 3].decode(errors="ignore") + "…"
