"""Log lines as text or JSON, without values of rows and payloads, even secret ones.

Projects with a LOGGING of their own name `JsonFormatter` there, or `RunningFilter` for a text of their own.
"""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg

from tasks.framework import payload
from tasks.framework.context import current
from tasks.support import tracing
from tasks.support.reading import one_line

WITHHELD = "[redacted]"


class RunningFilter(logging.Filter):
    """Adds `task_id`, `attempt`, `worker` and `trace` to the records of a handler; elsewhere they are empty.

    A handler that formats in another thread needs it, such as `logging.handlers.QueueHandler`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        running = tracing.RUNNING.get()
        record.task_id = running.task_id if running else ""
        record.attempt = running.attempt if running else ""
        record.worker = running.worker_id if running else ""
        record.trace = tracing.trace_id()
        return True


class LineFormatter(logging.Formatter):
    """Keeps an error's class, message with the constraint's name, and traceback; withholds its DETAIL and CONTEXT.

    Where payloads are encrypted, it withholds a handler's arguments from the lines that the handler logs. Texts of
    others begin no line and control no terminal: a message is one line, the lines of a traceback are indented.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(withheld(super().formatMessage(record), record))

    def format(self, record: logging.LogRecord) -> str:
        first, *others = withheld(super().format(record), record).split("\n")
        return "\n  ".join((first, *map(one_line, others)))


class JsonFormatter(logging.Formatter):
    """One JSON object a line, which withholds the same: time, level, logger, message; traceback of an error.

    In a handler's lines also task_id, attempt and worker; trace wherever there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        if not hasattr(record, "task_id"):
            RunningFilter().filter(record)
        traceback = record.exc_text or (self.formatException(record.exc_info) if record.exc_info else "")
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": withheld(record.getMessage(), record),
            "traceback": withheld(traceback, record),
            "stack": record.stack_info,
            **{name: getattr(record, name, "") for name in ("task_id", "attempt", "worker", "trace")},
        }
        return json.dumps({name: value for name, value in said.items() if value or name == "message"})


def withheld(text: str, record: logging.LogRecord) -> str:
    """The text without the values of the record's database errors and the arguments of the running handler."""
    for error in errors_of(record):
        for values in filter(None, (error.diag.message_detail, error.diag.context)):
            text = text.replace(values, WITHHELD)
    attempt = current()
    return attempt.report().redact(text) if attempt and payload.keys() else text


def errors_of(record: logging.LogRecord) -> Iterator[psycopg.Error]:
    """The database errors of a record, in its exception or arguments, including causes and groups."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    waiting = [record.exc_info[1] if record.exc_info else None, *arguments]
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if not isinstance(error, BaseException) or id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, psycopg.Error):
            yield error
        waiting += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
