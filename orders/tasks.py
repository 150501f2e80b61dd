"""The e-mails of shipped orders as a registered pattern, and as a task to enqueue periodically."""

from typing import Any

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from orders import accounts
from orders.models import Order
from orders.shipping import Mode, ship
from tasks import register_pattern, task
from tasks.operations.schedules import Offer, register_maintenance
from tasks.patterns import Choice


def make_shipped_orders(number: int) -> None:
    """Create `number` orders that wait for their e-mail, for the lab."""
    Order.objects.bulk_create(
        Order(customer_email=f"customer{place}@example.test", shipped_at=timezone.now()) for place in range(number)
    )


shipped_emails = register_pattern(
    "shipped_emails",
    Order.objects.to_handle(),
    run=ship,
    label=_("Ship e-mails now"),
    description=_(
        "Send one e-mail for each shipped order that has had none; safe to overlap with itself. E-mails that a dead "
        "sender left become unknown, for a person to resolve."
    ),
    permission="orders.ship_order",
    command="send_shipped_emails",
    action="ship-emails",
    choices=(Choice("mode", _("Order of events"), dict(Mode.choices), Mode.SEND_FIRST.value),),
    sample=make_shipped_orders,
)


@task()
def send_shipped_emails(mode: str = Mode.SEND_FIRST.value, limit: int | None = None) -> dict[str, Any]:
    """Send the e-mails of shipped orders, like the command with `--until-empty`; runs may overlap."""
    return ship(mode, limit=limit, until_empty=True).as_dict()


@task()
def check_accounts() -> int:
    """Fail if the balance of an account is not the sum of its entries; returns 0, the number of such accounts."""
    if wrong := [account.id for account in accounts.mismatches()]:
        raise ValueError(f"Accounts whose balance is not the sum of their entries: {wrong}. See `check_accounts`.")
    return 0


register_maintenance(Offer("check-accounts", check_accounts.module_path, _("Check all accounts"), "5 * * * *"))
