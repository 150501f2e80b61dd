"""Orders that need a person, and the number of e-mails still to be sent."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count, Min
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from orders.models import Order
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.panels import Figure, Line, Look, Severity, Step

COUNT_CAP = 10_000
SEE = "orders.view_order"


class Unknown(NamedTuple):
    """The number of e-mails of unknown fate, and the time of the oldest."""

    number: int
    since: datetime | None


class Emails(NamedTuple):
    to_mail: int
    unknown: Unknown


def to_mail() -> int:
    """Shipped orders whose e-mail may be sent now, counted up to the cap."""
    return Order.objects.to_mail().order_by()[:COUNT_CAP].count()


def unknown() -> Unknown:
    """Orders whose e-mail is of unknown fate, counted up to the cap."""
    first = Order.objects.of_unknown_fate().order_by("pk")[:COUNT_CAP]
    return Unknown(**first.aggregate(number=Count("pk"), since=Min("email_since")))


def emails() -> Emails:
    """Both counts, so that one request reads them once."""
    return Emails(to_mail(), unknown())


@panels.attention
def unknown_fate(look: Look) -> Iterator[Line]:
    """One line for all of them, because a person must decide about each."""
    found = look.once(emails).unknown
    if not found.number:
        return
    text = ngettext(
        "%(number)d e-mail of unknown fate: sent or not, nobody knows.",
        "%(number)d e-mails of unknown fate: sent or not, nobody knows.",
        found.number,
    )
    yield Line(
        key="orders:unknown",
        text=text % {"number": found.number},
        severity=Severity.LOSING,
        why=_("Their sender died in between, or the server did not answer; they are not sent again by themselves."),
        since=found.since,
        size=found.number,
        step=Step(_("Resolve"), orders(email_state="unknown"), command("resolve_emails", "ID", "--as", "resend")),
        permission=SEE,
    )


@panels.figures
def figures(look: Look) -> Iterator[Figure]:
    """Figures for orders to mail and for e-mails of unknown fate."""
    found = look.once(emails)
    lost = orders(email_state="unknown")
    yield Figure(_("Orders to mail"), capped(found.to_mail), orders(), permission=SEE)
    yield Figure(_("E-mails unknown"), capped(found.unknown.number), lost, "", found.unknown.number > 0, SEE)


def orders(**filters: str) -> str:
    """URL of the list of orders; `email_state` is a filter of the stock admin."""
    url = reverse("admin:orders_order_changelist")
    return f"{url}?email_state__exact={filters['email_state']}" if filters else url


def capped(number: int) -> str:
    """The number as text, with a plus sign at the cap."""
    return f"{number}+" if number >= COUNT_CAP else str(number)
