"""What of the orders needs a person, and how many e-mails are still to be sent."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count, Min
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from orders.models import Order
from tasks import panels
from tasks.panels import Figure, Line, Look, Severity, Step
from tasks.verdicts.words import command

COUNT_CAP = 10_000
SEE = "orders.view_order"


class Unknown(NamedTuple):
    """E-mails of unknown fate: how many, and since when the first."""

    number: int
    since: datetime | None


class Emails(NamedTuple):
    """How the e-mails of shipped orders stand."""

    to_mail: int
    unknown: Unknown


def to_mail() -> int:
    """Shipped orders whose e-mail may be sent now, counted up to the cap."""
    return Order.objects.to_mail().order_by()[:COUNT_CAP].count()


def unknown() -> Unknown:
    """Those of unknown fate, counted up to the cap."""
    first = Order.objects.of_unknown_fate().order_by("pk")[:COUNT_CAP]
    return Unknown(**first.aggregate(number=Count("pk"), since=Min("email_since")))


def emails() -> Emails:
    """Both, as one question of a look."""
    return Emails(to_mail(), unknown())


@panels.attention
def unknown_fate(look: Look) -> Iterator[Line]:
    """One line for all of them: a person decides about each."""
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
    """Orders to mail, and those of unknown fate."""
    found = look.once(emails)
    lost = orders(email_state="unknown")
    yield Figure(_("Orders to mail"), capped(found.to_mail), orders(), permission=SEE)
    yield Figure(_("E-mails unknown"), capped(found.unknown.number), lost, "", found.unknown.number > 0, SEE)


def orders(**filters: str) -> str:
    """The list of orders; `email_state` is a filter of the stock admin."""
    url = reverse("admin:orders_order_changelist")
    return f"{url}?email_state__exact={filters['email_state']}" if filters else url


def capped(number: int) -> str:
    """The number, or that there are more than are counted."""
    return f"{number}+" if number >= COUNT_CAP else str(number)
