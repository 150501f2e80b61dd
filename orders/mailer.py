"""Django's SMTP backend, which also tells how far a message got before it failed.

`NotSent`: it never went out, or was refused. `Unreachable`: no connection to the server. `Unanswered`: all of it went
out and no answer came, so it may or may not have been delivered.
"""

import smtplib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parseaddr
from enum import StrEnum
from typing import Any

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


class NotSent(Exception):
    """The server has not taken the message, so it is safe to send it again."""

    def __init__(self, reply: str, *, is_permanent: bool = False, is_connection_lost: bool = False) -> None:
        super().__init__(reply)
        self.reply = reply
        self.is_permanent = is_permanent
        self.is_connection_lost = is_connection_lost


class Unreachable(NotSent):
    """No connection to the server, which says nothing about the message."""


class Unanswered(Exception):
    """The whole message went out and the server did not answer."""

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        self.reply = reply


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
            raise Unreachable(_reply_of(error)) from error

    def _deliver(self, message: EmailMessage) -> int:
        is_used = self.connection is not None
        try:
            return self._converse(message)
        except NotSent as failure:
            if not (is_used and failure.is_connection_lost):
                raise
        return self._converse(message)

    def _converse(self, message: EmailMessage) -> int:
        self.open()
        try:
            return super().send_messages([message])
        except Exception as error:
            raise self._verdict(error) from error

    def _verdict(self, error: Exception) -> Exception:
        """Return NotSent or Unanswered for this failure; close the connection if it is of no more use."""
        is_lost = _code_of(error) == SERVICE_ENDS or isinstance(error, smtplib.SMTPServerDisconnected)
        is_message_out = getattr(self.connection, "is_message_out", False)
        if is_lost or is_message_out:
            self.close()
        if is_message_out:
            return Unanswered(_reply_of(error))
        is_permanent = _code_of(error) in PERMANENT or not isinstance(error, OSError)
        return NotSent(_reply_of(error), is_permanent=is_permanent, is_connection_lost=is_lost)


def readable(code: int, text: bytes | str) -> str:
    """The server's reply on one line, without NUL bytes: `550 5.1.1 no such user`."""
    said = text.decode(errors="replace") if isinstance(text, bytes) else text
    return _one_line(f"{code} {said}")


def readable_error(error: Exception) -> str:
    """An error in the form of a reply: `ConnectionRefusedError: [Errno 111] Connection refused`."""
    return _one_line(f"{type(error).__name__}: {error}")


def _one_line(text: str) -> str:
    return " ".join(text.replace("\0", "").split())[:LONGEST]


def _response(error: Exception) -> tuple[int, bytes | str] | None:
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return next(iter(error.recipients.values()))
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code, error.smtp_error
    return None


def _code_of(error: Exception) -> int | None:
    response = _response(error)
    return response[0] if response else None


def _reply_of(error: Exception) -> str:
    response = _response(error)
    return readable(*response) if response else readable_error(error)


GIVE_UP_AFTER = 3  # attempts in a row that did not reach the server

SUBJECT = "Your order {number} has been shipped"
TEXT = "Your order {number} of {placed} has been on its way to you since {shipped}.\n"


class Fate(StrEnum):
    """The outcome of one e-mail."""

    SENT = "sent"
    NOT_SENT = "not_sent"  # certain: it is safe to send again
    UNANSWERED = "unanswered"  # it went out and no answer came


@dataclass(frozen=True)
class Ending:
    """The fate of one e-mail and the server's last reply about it."""

    fate: Fate
    reply: str = ""
    is_permanent: bool = False


def message_id(order: Order) -> str:
    """The same for every attempt on every machine, so that a duplicate can be recognised."""
    domain = parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2] or "localhost"
    return f"<order-{order.pk}-shipped@{domain}>"


def message_for(order: Order) -> EmailMessage:
    """The e-mail to the customer; times in the project's TIME_ZONE."""
    facts = {"number": order.pk, "placed": _day(order.placed_at), "shipped": _day(order.shipped_at)}
    return EmailMessage(
        SUBJECT.format(**facts),
        TEXT.format(**facts),
        to=[order.customer_email],
        headers={"Message-ID": message_id(order)},
    )


def _day(at: datetime | None) -> str:
    return f"{localtime(at):%Y-%m-%d}" if at else "today"


class Mailer:
    """Sends the e-mails of one run; a failed e-mail does not stop the others."""

    def __init__(self) -> None:
        self.backend = mail_backend()
        self.last_problem = ""
        self._unreachable_in_a_row = 0

    @property
    def has_given_up(self) -> bool:
        """True when the server is unreachable, so that a run does not try every order in turn."""
        return self._unreachable_in_a_row >= GIVE_UP_AFTER

    def send(self, order: Order) -> Ending:
        """Try once. Every failure becomes an Ending; none is raised."""
        try:
            ending = Ending(Fate.SENT, self._send(order))
        except Unreachable as failure:
            self._unreachable_in_a_row += 1
            self.last_problem = failure.reply
            return Ending(Fate.NOT_SENT, failure.reply)
        except NotSent as failure:
            ending = Ending(Fate.NOT_SENT, failure.reply, failure.is_permanent)
        except Unanswered as failure:
            ending = Ending(Fate.UNANSWERED, failure.reply)
        self._unreachable_in_a_row = 0
        return ending

    def _send(self, order: Order) -> str:
        message = message_for(order)
        _refuse_unsendable(message)
        try:
            self.backend.open()
            self.backend.send_messages([message])
        except (NotSent, Unanswered):
            raise
        except Exception as error:  # another backend does not say how far the message got
            raise Unanswered(readable_error(error)) from error
        return getattr(self.backend, "last_reply", "")

    def close(self) -> None:
        self.backend.close()


def _refuse_unsendable(message: EmailMessage) -> None:
    """Raise NotSent for a message that no server would take."""
    if not message.recipients():
        raise NotSent("the order has no e-mail address", is_permanent=True)
    try:
        message.message()
    except Exception as error:
        raise NotSent(readable_error(error), is_permanent=True) from error
