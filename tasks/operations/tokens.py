"""Carry out each submitted form once: a second click finds the result of the first."""

import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from django.db import connection

from tasks.operations.verb import short_waits
from tasks.support.database import execute, fetch

LONGEST_TOKEN = 100
DOUBLE_CLICK_SECONDS = 5.0
POLL_SECONDS = 0.05

# A second click waits here until the first commits, then finds its row.
TAKE = "INSERT INTO tasks_submittedform (token) VALUES (%(token)s::text) ON CONFLICT DO NOTHING RETURNING token"
KEEP = "UPDATE tasks_submittedform SET target = %(target)s::text WHERE token = %(token)s::text RETURNING token"
FIND = "SELECT target FROM tasks_submittedform WHERE token = %(token)s::text"
FREE = "DELETE FROM tasks_submittedform WHERE token = %(token)s::text"
FIND_RECENT = """
SELECT target, at > statement_timestamp() - make_interval(secs => %(seconds)s::float8) AS is_recent
FROM tasks_submittedform WHERE token = %(token)s::text
"""
FORGET = """
DELETE FROM tasks_submittedform WHERE token IN (
    SELECT token FROM tasks_submittedform WHERE at < statement_timestamp() - interval '1 day' LIMIT 100
    FOR UPDATE SKIP LOCKED)
RETURNING token
"""


class Submitted(NamedTuple):
    """The result of a form; not `is_new` if it had been carried out before."""

    target: str
    is_new: bool


def new_token() -> str:
    """A random value for a form's hidden field."""
    return secrets.token_urlsafe(16)


def is_token(text: str) -> bool:
    """True if `new_token` can have made this."""
    return 16 <= len(text) <= LONGEST_TOKEN and text.isascii() and text.isprintable()


def once(token: str, work: Callable[[], str]) -> Submitted:
    """Do the work, which returns its target, in one transaction with the token; a known token does nothing.

    A second click waits at most 2 s for the first, then fails with 55P03.
    """
    with short_waits():
        if not fetch(connection, TAKE, {"token": token}):
            return Submitted(fetch(connection, FIND, {"token": token})[0]["target"], is_new=False)
        target = work()
        fetch(connection, KEEP, {"token": token, "target": target})
        fetch(connection, FORGET)
    return Submitted(target, is_new=True)


def once_within_seconds(token: str, work: Callable[[], str]) -> str | None:
    """Do the work, which returns its target, in transactions of its own; a double click gets the target of the first.

    A double click is the same token within DOUBLE_CLICK_SECONDS, and waits until the first has ended. Returns None for
    a token that was used earlier. After an error, or an empty target, the token may be used again.
    """
    while not _take(token):
        # No row: the first click has freed the token since.
        for row in fetch(connection, FIND_RECENT, {"token": token, "seconds": DOUBLE_CLICK_SECONDS}):
            if row["target"] or not row["is_recent"]:
                return row["target"] if row["is_recent"] else None
        time.sleep(POLL_SECONDS)
    target = ""
    try:
        target = work()
    finally:
        _end(token, target)
    return target


def _take(token: str) -> bool:
    with short_waits():
        return bool(fetch(connection, TAKE, {"token": token}))


def _end(token: str, target: str) -> None:
    with short_waits():
        if target:
            fetch(connection, KEEP, {"token": token, "target": target})
            fetch(connection, FORGET)
        else:
            execute(connection, FREE, {"token": token})
