"""Runs that are sending e-mails now.

An order that is marked before its e-mail goes out names its sender. The sender holds an advisory lock, which PostgreSQL
drops with the session, even after kill -9. So `pg_locks` shows the living senders, and no timeout is needed. The lock's
class comes from the schema, its key from the sender's random id.
"""

import os
import secrets
import socket
from typing import TYPE_CHECKING, ClassVar, Self

import psycopg
from django.db import connection, models
from django.db.models import BooleanField, ExpressionWrapper, F, Field, Func, Q

from tasks.support.database import own_session
from tasks.support.durations import StatementTimestamp

if TYPE_CHECKING:
    from orders.models import Order  # noqa: F401

TAKE = "SELECT pg_try_advisory_lock(hashtext('rowlock:sender:' || current_schema()), hashtext(%(id)s::text))"


class SenderIsGone(Func):
    """True if the session of the sender that this column names has ended.

    A sender holds its lock from before it writes its name until its last order is done. So a name without a lock means
    a dead sender, or an order that was finished after it was read; the second check, under the row's lock, tells.
    `objid` and `classid` are unsigned, `hashtext` is not.
    """

    template = """NOT hashtext(%(expressions)s)::bigint & 4294967295 IN (
        SELECT objid::bigint FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 2 AND granted
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND classid::bigint = (hashtext('rowlock:sender:' || current_schema())::bigint & 4294967295))"""
    output_field: ClassVar[Field] = BooleanField()


class Sender:
    """One run that sends e-mails; its own session starts at `introduce` and ends at `close`."""

    def __init__(self) -> None:
        self.id = ""
        self._session: psycopg.Connection | None = None

    def introduce(self) -> str:
        """Take the lock once; returns the sender's id, which contains host and process id."""
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
    """The name of the process's own connection, so that the lock shows its owner."""
    connection.ensure_connection()
    return connection.connection.info.parameter_status("application_name") or "rowlock"


PENDING = Q(shipped_at__isnull=False, shipped_email_sent=False)  # the condition of a partial index


class OrderQuerySet(models.QuerySet["Order"]):
    """Orders by what their e-mail needs next."""

    def pending(self) -> Self:
        """Shipped, and not marked as mailed."""
        return self.filter(PENDING)

    def pending_first(self) -> Self:
        """Pending orders, then the others; newest first. An index holds this order."""
        return self.alias(is_pending=ExpressionWrapper(PENDING, BooleanField())).order_by("-is_pending", "-pk")

    def to_mail(self) -> Self:
        """Pending orders that nobody is sending and that do not wait for a retry."""
        return self.pending().filter(_is_due())

    def abandoned(self) -> Self:
        """Marked as being sent by a sender that is gone: the e-mail may or may not have been sent."""
        return self.pending().filter(_is_abandoned())

    def to_handle(self) -> Self:
        """Orders that a run handles: orders to mail, and abandoned ones."""
        return self.pending().filter(_is_due() | _is_abandoned())

    def of_unknown_fate(self) -> Self:
        return self.pending().filter(email_state="unknown")


def _is_due() -> Q:
    return Q(email_state="none") & (Q(email_next_at__isnull=True) | Q(email_next_at__lte=StatementTimestamp()))


def _is_abandoned() -> Q:
    return Q(SenderIsGone(F("email_owner")), email_state="sending")
