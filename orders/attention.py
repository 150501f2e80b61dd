"""Register lines that need a person, figures, links, gauges and watched rows of orders."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count, Min
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from orders.models import Account, Order
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.panels import AttentionLine, Figure, Gauge, Page, Severity, Snapshot, Step
from tasks.support.addresses import address

COUNT_CAP = 10_000
SEE = "orders.view_order"
UNKNOWN = "?email_state__exact=unknown"  # a filter of the list of orders


panels.page(Page(gettext_lazy("Orders"), "admin:orders_order_changelist", SEE, "r"))
panels.page(Page(gettext_lazy("Accounts"), "admin:orders_account_changelist", "orders.view_account", "b"))
panels.watch(Order, gettext_lazy("Order %(id)s"))
panels.watch(Account, gettext_lazy("Account %(id)s"))


class Emails(NamedTuple):
    """Counts up to the cap, and the time and order of the oldest e-mail that may or may not have been sent."""

    to_mail: int
    unknown: int
    unknown_since: datetime | None
    unknown_id: int | None


def emails() -> Emails:
    """Both counts, so that one snapshot reads them once."""
    to_mail = Order.objects.to_mail().order_by()[:COUNT_CAP].count()
    first = Order.objects.of_unknown_fate().order_by("pk")[:COUNT_CAP]
    oldest = {"unknown_since": Min("email_since"), "unknown_id": Min("pk")}
    return Emails(to_mail, **first.aggregate(unknown=Count("pk"), **oldest))


@panels.attention
def unknown_fate(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """One line for all of them, because a person must decide about each."""
    found = snapshot.once(emails)
    if not found.unknown:
        return
    text = ngettext(
        "%(number)d e-mail may or may not have been sent.",
        "%(number)d e-mails may or may not have been sent.",
        found.unknown,
    )
    yield AttentionLine(
        key="orders:unknown",
        text=text % {"number": found.unknown},
        severity=Severity.LOSING,
        why=_("Their sender died in between, or the server did not answer; they are not sent again by themselves."),
        since=found.unknown_since,
        size=found.unknown,
        step=Step(
            _("Resolve"),
            address("admin:orders_order_changelist") + UNKNOWN,
            command("resolve_emails", str(found.unknown_id), "--as", "resend"),
        ),
        permission=SEE,
    )


@panels.figures
def figures(snapshot: Snapshot) -> Iterator[Figure]:
    """The number of orders to mail; the note counts those that may have been sent."""
    found = snapshot.once(emails)
    url = address("admin:orders_order_changelist")
    unknown = _("%(number)s unknown") % {"number": capped(found.unknown)} if found.unknown else ""
    yield Figure(_("Orders to mail"), capped(found.to_mail), url, unknown, permission=SEE)


@panels.gauges
def gauges(snapshot: Snapshot) -> Iterator[Gauge]:
    """E-mails to send, and those that may or may not have been sent."""
    found = snapshot.once(emails)
    values: dict[tuple[str, ...], float] = {("to_send",): found.to_mail, ("unknown",): found.unknown}
    yield Gauge("rowlock_order_emails", "E-mails of shipped orders (up to 10,000).", ("state",), values)


def capped(number: int) -> str:
    """The number as text, with a plus sign at the cap."""
    text = number_format(number, force_grouping=True)
    return f"{text}+" if number >= COUNT_CAP else text
