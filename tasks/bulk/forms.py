"""A form carried out once, however often it is sent: the second click finds what came of the first."""

import secrets
from collections.abc import Callable
from typing import NamedTuple

from django.db import connection

from tasks.actions.chunks import short_waits
from tasks.database import fetch

# The second click waits here for the first to commit, and then finds its row.
TAKE = "INSERT INTO tasks_submittedform (token) VALUES (%(token)s::text) ON CONFLICT DO NOTHING RETURNING token"
KEEP = "UPDATE tasks_submittedform SET target = %(target)s::text WHERE token = %(token)s::text RETURNING token"
FIND = "SELECT target FROM tasks_submittedform WHERE token = %(token)s::text"
FORGET = """
DELETE FROM tasks_submittedform WHERE token IN (
    SELECT token FROM tasks_submittedform WHERE at < statement_timestamp() - interval '1 day' LIMIT 100
    FOR UPDATE SKIP LOCKED)
RETURNING token
"""
LONGEST_TOKEN = 100


class Submitted(NamedTuple):
    """What came of a form; not `is_new` when it had been carried out before."""

    target: str
    is_new: bool


def new_token() -> str:
    """For a hidden field of a form that is shown."""
    return secrets.token_urlsafe(16)


def is_token(text: str) -> bool:
    """Whether this can be what `new_token` gave."""
    return 16 <= len(text) <= LONGEST_TOKEN and text.isascii() and text.isprintable()


def once(token: str, work: Callable[[], str]) -> Submitted:
    """Do the work, which gives its target, in one transaction with the token; a token that is known does nothing.

    Waits for the first of two clicks no longer than 2 s, and then fails with 55P03.
    """
    with short_waits():
        if not fetch(connection, TAKE, {"token": token}):
            return Submitted(fetch(connection, FIND, {"token": token})[0]["target"], is_new=False)
        target = work()
        fetch(connection, KEEP, {"token": token, "target": target})
        fetch(connection, FORGET)
    return Submitted(target, is_new=True)
