"""Who is sending e-mails at this moment.

An order that was marked before its e-mail went out names its sender. The sender holds an advisory lock of its own,
which PostgreSQL drops with the session, kill -9 included: so whether it lives is asked of `pg_locks`, not of a timeout.
The class of the lock comes from the schema, its key from the sender's random id.
"""

import os
import secrets
import socket
from typing import ClassVar

import psycopg
from django.db import connection
from django.db.models import BooleanField, Field, Func

from tasks.pooling import own_session

TAKE = "SELECT pg_try_advisory_lock(hashtext('rowlock:sender:' || current_schema()), hashtext(%(id)s::text))"


class SenderIsGone(Func):
    """Whether the session of the sender that this column names has ended.

    The lock is taken before the sender's name is written, and let go after its last order is settled. So a row that
    names a sender without a lock is one whose sender is gone, or one that was settled since the row was read: its
    second look, under the row's lock, tells. `objid` and `classid` are unsigned, `hashtext` is not.
    """

    template = """NOT hashtext(%(expressions)s)::bigint & 4294967295 IN (
        SELECT objid::bigint FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 2 AND granted
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND classid::bigint = (hashtext('rowlock:sender:' || current_schema())::bigint & 4294967295))"""
    output_field: ClassVar[Field] = BooleanField()


class Sender:
    """One run that sends e-mails; it has a session of its own from `introduce` on, and is gone when that is closed."""

    def __init__(self) -> None:
        self.id = ""
        self._session: psycopg.Connection | None = None

    def introduce(self) -> str:
        """Take the lock, once; gives the sender's id, which tells people the host and the process."""
        if self._session is None:
            self._session = own_session(_application_name())
        while not self.id:
            chosen = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
            if self._session.execute(TAKE, {"id": chosen}).fetchone() == (True,):
                self.id = chosen
        return self.id

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def _application_name() -> str:
    """That of the process's own connection, so that the lock shows whose it is."""
    connection.ensure_connection()
    return connection.connection.info.parameter_status("application_name") or "rowlock"
