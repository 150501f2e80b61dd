"""Django's SMTP backend, which also tells how far a message got before it failed.

`NotSent`: it never went out, or was refused. `Unreachable`: no connection to the server. `Unanswered`: all of it went
out and no answer came, so it may or may not have been delivered.
"""

import smtplib
from collections.abc import Sequence
from typing import Any

from django.core.mail import EmailMessage
from django.core.mail.backends import smtp

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
