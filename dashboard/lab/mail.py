"""A mail backend that records each message in the lab's ledger instead of sending it."""

import re
from collections.abc import Sequence
from typing import Any

from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from dashboard.lab.bench import Bench

ORDER = re.compile(r"<order-(\d+)-shipped@")
_benches: list[Bench] = []  # at most one in each process


def deliver_to(bench: Bench) -> None:
    """From now on, record every message of this process on this bench."""
    _benches[:] = [bench]


class LedgerBackend(BaseEmailBackend):
    """Accepts everything and sends nothing; the order's number comes from the Message-ID."""

    last_reply = "250 noted in the ledger"

    def send_messages(self, messages: Sequence[EmailMessage]) -> int:
        for message in messages:
            if (order := order_of(message)) is not None:
                _benches[0].work(order)
        return len(messages)


def order_of(message: EmailMessage) -> int | None:
    """The order of a message; None for other e-mails, which are effects of a registered pattern."""
    headers: dict[str, Any] = message.extra_headers
    found = ORDER.match(headers.get("Message-ID", ""))
    return int(found[1]) if found else None
