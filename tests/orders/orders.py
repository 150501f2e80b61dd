"""Orders in each state of their e-mail: the rungs that tests start from."""

from typing import Any

from django.utils import timezone

from orders.models import Order


def placed(number: int = 1, **columns: Any) -> list[Order]:
    """So many orders that nobody has shipped yet."""
    return Order.objects.bulk_create(
        Order(**{"customer_email": f"customer{place}@example.test", **columns}) for place in range(number)
    )


def shipped(number: int = 1, **columns: Any) -> list[Order]:
    """So many orders that wait for their e-mail."""
    return placed(number, **{"shipped_at": timezone.now(), **columns})


def mailed(number: int = 1) -> list[Order]:
    """So many orders that have had their e-mail."""
    return shipped(number, shipped_email_sent=True, email_state="sent")


def states() -> list[str]:
    """The e-mail states of all orders, by id."""
    return list(Order.objects.order_by("pk").values_list("email_state", flat=True))
