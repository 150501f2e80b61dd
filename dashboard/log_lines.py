"""Log lines without values of rows and payloads, even secret ones."""

import logging
from collections.abc import Iterator

import psycopg

from tasks.framework import payload
from tasks.framework.context import current

WITHHELD = "[redacted]"


class LineFormatter(logging.Formatter):
    """Keeps an error's class, message with the constraint's name, and traceback; withholds its DETAIL and CONTEXT.

    Where payloads are encrypted, it withholds a handler's arguments from the lines that the handler logs.
    """

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for error in errors_of(record):
            for values in filter(None, (error.diag.message_detail, error.diag.context)):
                text = text.replace(values, WITHHELD)
        report = current.get() if payload.keys() else None
        return report().redact(text) if report else text


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
