"""The e-mail about a shipped order, sent over one connection for a whole run."""

from dataclasses import dataclass
from datetime import datetime
from email.utils import parseaddr
from enum import StrEnum

from django.conf import settings
from django.core.mail import EmailMessage
from django.utils.timezone import localtime

from orders.models import Order
from orders.smtp import NotSent, Unanswered, Unreachable, readable_error
from tasks.compat import mail_backend

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
