"""Django's SMTP backend, which also tells how far a message got before it failed, and the e-mail about a shipment.

`NotSent`: it never went out, or was refused. `Unreachable`: no connection to the server. `Unanswered`: all of it went
out and no answer came, so it may or may not have been delivered.
"""

import smtplib
from collections.abc import Sequence
from email.utils import parseaddr
from enum import StrEnum
from typing import Any, NamedTuple

from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends import smtp
from django.utils.timezone import localtime

from orders.models import Order
from tasks.compat import mail_backend

SERVICE_ENDS = 421
REFUSALS = range(400, 600)
PERMANENT = range(500, 600)
LONGEST = 1000  # characters of a reply
GIVE_UP_AFTER = 3  # attempts in a row that did not reach the server


class Result(StrEnum):
    """The outcome of one e-mail."""

    SENT = "sent"
    FAILED = "failed"  # to be sent again
    UNKNOWN = "unknown"  # it may or may not have been delivered; a person resolves it


class Ending(NamedTuple):
    """The outcome of one e-mail and the server's last reply about it."""

    result: Result
    reply: str = ""
    is_permanent: bool = False


class Failure(Exception):
    """A message that was not taken, with the server's reply or the error."""

    result = Result.FAILED

    def __init__(self, reply: str, *, is_permanent: bool = False, is_connection_lost: bool = False) -> None:
        super().__init__(reply)
        self.reply = reply
        self.is_permanent = is_permanent
        self.is_connection_lost = is_connection_lost


class NotSent(Failure):
    """The server has not taken the message, so it is safe to send it again."""


class Unreachable(NotSent):
    """No connection to the server, which says nothing about the message."""


class Unanswered(Failure):
    """The whole message went out and the server did not answer."""

    result = Result.UNKNOWN


class _Conversation(smtplib.SMTP):
    """Records the last reply, and notes when the server may have taken a message without an answer."""

    last_reply = ""
    is_message_out = False
    _is_message_asked_for = False

    def send(self, s: Any) -> None:
        super().send(s)
        if self._is_message_asked_for:
            self.is_message_out = True  # with its final dot: otherwise an error would have been raised

    def getreply(self) -> tuple[int, bytes]:
        code, text = super().getreply()
        if self._is_message_asked_for and (code == 250 or code in REFUSALS):
            self.is_message_out = False
        self._is_message_asked_for = code == 354
        self.last_reply = readable(code, text)
        return code, text


class _SecureConversation(_Conversation, smtplib.SMTP_SSL):
    """The same over TLS from the first byte."""


class EmailBackend(smtp.EmailBackend):
    """Sends by SMTP. Raises Unreachable, NotSent or Unanswered; `last_reply` is the server's last reply.

    If the server closed a used connection before this message, connect again once. The message has not gone out then.
    """

    @property
    def connection_class(self) -> type[smtplib.SMTP]:
        return _SecureConversation if self.use_ssl else _Conversation

    @property
    def last_reply(self) -> str:
        return getattr(self.connection, "last_reply", "")

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        is_kept = self.connection is not None
        try:
            return sum(self._deliver(message) for message in email_messages)
        finally:
            if not is_kept:
                self.close()

    def open(self) -> bool | None:
        try:
            return super().open()
        except OSError as error:
            raise Unreachable(_reply_of(error)[1]) from error

    def _deliver(self, message: EmailMessage) -> int:
        is_used = self.connection is not None
        self.open()
        try:
            return super().send_messages([message])
        except Exception as error:
            failure = self._failure_of(error)
            if not (is_used and failure.is_connection_lost):
                raise failure from error
        return self._deliver(message)

    def _failure_of(self, error: Exception) -> Failure:
        """Return NotSent or Unanswered; close the connection if it is of no more use."""
        code, reply = _reply_of(error)
        is_lost = code == SERVICE_ENDS or isinstance(error, smtplib.SMTPServerDisconnected)
        is_message_out = getattr(self.connection, "is_message_out", False)
        if is_lost or is_message_out:
            self.close()
        if is_message_out:
            return Unanswered(reply)
        is_permanent = code in PERMANENT or not isinstance(error, OSError)
        return NotSent(reply, is_permanent=is_permanent, is_connection_lost=is_lost)


def _reply_of(error: Exception) -> tuple[int, str]:
    """The server's code (0: none) and its reply, or the error: `ConnectionRefusedError: [Errno 111] …`."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        code, text = next(iter(error.recipients.values()))
        return code, readable(code, text)
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code, readable(error.smtp_code, error.smtp_error)
    return 0, _one_line(f"{type(error).__name__}: {error}")


def readable(code: int, text: bytes | str) -> str:
    """The server's reply on one line, without NUL bytes: `550 5.1.1 no such user`."""
    return _one_line(f"{code} {text.decode(errors='replace') if isinstance(text, bytes) else text}")


def _one_line(text: str) -> str:
    return " ".join(text.replace("\0", "").split())[:LONGEST]


def message_id(order: Order) -> str:
    """The same for every attempt on every machine, so that a duplicate can be recognised."""
    domain = parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2] or "localhost"
    return f"<order-{order.pk}-shipped@{domain}>"


def message_for(order: Order) -> EmailMessage:
    """The e-mail to the customer; dates in the project's TIME_ZONE."""
    placed, shipped = (f"{localtime(at):%Y-%m-%d}" for at in (order.placed_at, order.shipped_at))
    return EmailMessage(
        f"Your order {order.pk} has been shipped",
        f"Your order {order.pk} of {placed} has been on its way to you since {shipped}.\n",
        to=[order.customer_email],
        headers={"Message-ID": message_id(order)},
    )


class Mailer:
    """Sends the e-mails of one run; a failed e-mail does not stop the others."""

    def __init__(self) -> None:
        self.backend = mail_backend()
        self._unreachable_in_a_row: list[str] = []

    @property
    def gave_up(self) -> str:
        """The last error, if the server cannot be reached and trying the other orders is of no use; else empty."""
        return self._unreachable_in_a_row[-1] if len(self._unreachable_in_a_row) >= GIVE_UP_AFTER else ""

    def send(self, order: Order) -> Ending:
        """Try once. Every failure becomes an Ending; none is raised."""
        try:
            ending = Ending(Result.SENT, self._send(message_for(order)))
        except Failure as failure:
            ending = Ending(failure.result, failure.reply, failure.is_permanent)
            if isinstance(failure, Unreachable):
                self._unreachable_in_a_row.append(failure.reply)
                return ending
        self._unreachable_in_a_row.clear()
        return ending

    def _send(self, message: EmailMessage) -> str:
        """Return the server's reply. Raises Failure."""
        if not message.recipients():
            raise NotSent("the order has no e-mail address", is_permanent=True)
        try:
            message.message()
        except Exception as error:  # no server would take it
            raise NotSent(_reply_of(error)[1], is_permanent=True) from error
        try:
            self.backend.open()
            self.backend.send_messages([message])
        except Failure:
            raise
        except Exception as error:  # another backend does not say how far the message got
            raise Unanswered(_reply_of(error)[1]) from error
        return getattr(self.backend, "last_reply", "")

    def close(self) -> None:
        self.backend.close()
