"""Log lines without what PostgreSQL adds to its errors: DETAIL and CONTEXT hold values of rows, secret ones too."""

import logging
from collections.abc import Iterator

import psycopg

WITHHELD = "[redacted]"


class LineFormatter(logging.Formatter):
    """Leaves an error's class, its sentence with the constraint's name, and its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for error in errors_of(record):
            for told in (error.diag.message_detail, error.diag.context):
                if told:
                    text = text.replace(told, WITHHELD)
        return text


def errors_of(record: logging.LogRecord) -> Iterator[psycopg.Error]:
    """The database's errors that a record tells of: as its exception or in its words, behind other errors too."""
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
