"""The tasks of the lab and of alerts, and the demo's: harmless, and together in every state that a task can have."""

import logging
import os
import time
from typing import Any

from dashboard import alerts, demo, project
from dashboard.alerts import delivery
from tasks.compat import FRAMEWORK, TaskContext
from tasks.framework.decorator import task
from tasks.operations import bulk

logger = logging.getLogger(__name__)

LARGEST_NUMBER = 100_000
LONGEST_NAP_SECONDS = 3.0
MONTHS, MONTH_SECONDS = 12, 0.5
LONG_SECONDS, SHORT_SECONDS, STEP_SECONDS = 60.0, 0.3, 0.1


class Staged(Exception):
    """A failure that belongs to the demo."""


class CardDeclined(Staged):
    """The demo's payment provider refuses."""


class ServerUnreachable(Staged, ConnectionError):
    """The demo's mail server does not answer."""


def is_news(record: logging.LogRecord) -> bool:
    """Filter staged failures from the console, where their tracebacks would hide the address; pages show them."""
    return not (record.exc_info and isinstance(record.exc_info[1], Staged))


logging.getLogger(FRAMEWORK).addFilter(is_news)


@task(queue_name="rowlock-lab")
def run_lab(batch: str) -> dict[str, int]:
    """The runs of one batch of the lab, one after the other; gives how many ended how."""
    from dashboard.lab import requests  # every command imports this module

    return bulk.in_own_session(lambda _: requests.run_batch(batch), 0)


@task(
    queue_name=alerts.QUEUE,
    priority=100,
    max_attempts=20,
    backoff=lambda attempt: min(2.0**attempt, 600.0),
    timeout=60,
    durable=True,
    unique_key=lambda incident, state, channel, size: f"alert:{incident}:{state}:{size}:{channel}",
)
def send_alert(incident: int, state: str, channel: str, size: int) -> str:
    """Send one message about an incident to one channel; tried again for two hours."""
    return delivery.deliver(incident, state, channel, size)


@task(queue_name=demo.REPORTS)
def count_primes(below: int) -> int:
    """How many prime numbers there are below a number (at most 100,000)."""
    below = max(0, min(below, LARGEST_NUMBER))
    composite = bytearray(below)
    for number in range(2, int(below**0.5) + 1):
        composite[number * number :: number] = b"\1" * len(composite[number * number :: number])
    return composite.count(0, 2)


@task(queue_name=demo.REPORTS)
def nap(seconds: float) -> None:
    """Takes its time, at most three seconds."""
    time.sleep(min(max(seconds, 0.0), LONGEST_NAP_SECONDS))


@task(queue_name=demo.REPORTS, takes_context=True)
def summarize_year(context: Any) -> str:
    """Takes some seconds and tells how far it is; the next attempt starts with the month that the last one reached."""
    for month in range(context.state or 0, MONTHS):
        if context.is_cancelled():
            return "cancelled"
        time.sleep(MONTH_SECONDS)
        if month % 3 == 2:  # few lines, as the console shows them too
            logger.info("quarter %d is added up", month // 3 + 1)
        context.report((month + 1) / MONTHS, f"month {month + 1} of {MONTHS}")
        context.checkpoint(month + 1)
    return f"{MONTHS} months"


@task(queue_name=demo.MAIL, ordering_key=lambda customer, letter: f"demo-{customer}")
def write_letter(customer: str, letter: int) -> str:
    """One of several letters to one customer, which keep their order."""
    return f"letter {letter} to {customer}"


@task(queue_name=demo.MAIL, takes_context=True, backoff=lambda attempt: 2.0)
def reach_busy_server(context: TaskContext) -> str:
    """Fails at its first attempt and succeeds at its second."""
    if context.attempt < 2:
        raise ServerUnreachable("The demo's mail server is busy.")
    return f"sent at attempt {context.attempt}"


@task(queue_name=demo.BILLING, max_attempts=1)
def charge_card(order: int) -> None:
    """Fails for good at its only attempt."""
    raise CardDeclined(f"The demo's payment provider declines the card of order {order}.")


@task(queue_name=demo.BILLING, ordering_key=lambda customer, invoice: f"demo-{customer}", backoff=lambda attempt: 3600)
def write_invoice(customer: str, invoice: int) -> str:
    """The first of a customer fails and tries again in an hour; until then it holds the key for those behind it."""
    if invoice == 1:
        raise ServerUnreachable("The demo's archive is closed until the next hour.")
    return f"invoice {invoice} to {customer}"


@task(
    queue_name=demo.REPORTS, concurrency_key="demo-carrier", concurrency_limit=1, rate_key="demo-carrier",
    rate_limit="6/m",
)  # fmt: skip
def call_carrier(parcel: int) -> str:
    """One call at a time and six a minute: that is what the carrier allows."""
    time.sleep(LONGEST_NAP_SECONDS)
    return f"parcel {parcel} is announced"


@task(queue_name=demo.PAYOUTS, takes_context=True)
def pay_out(context: TaskContext, number: int) -> str:
    """Money that must not leave twice: its queue asks a person before it is tried again."""
    return work_long_enough_to_be_killed(context)


@task(queue_name=demo.PARCELS, takes_context=True)
def pack_parcel(context: TaskContext, number: int) -> str:
    """Work that may be repeated: its queue recovers by itself."""
    return work_long_enough_to_be_killed(context)


@task(takes_context=True)
def survive_a_kill(context: TaskContext) -> str:
    """The lab's drill: its first attempt is there to be killed."""
    return work_long_enough_to_be_killed(context)


def work_long_enough_to_be_killed(context: TaskContext) -> str:
    """Work briefly, but up to a minute at the first attempt in a demo worker, while its supervisor lives."""
    is_victim = bool(os.environ.get(project.VICTIM)) and context.attempt == 1
    supervisor, ends_at = os.getppid(), time.monotonic() + (LONG_SECONDS if is_victim else SHORT_SECONDS)
    while time.monotonic() < ends_at and os.getppid() == supervisor:
        time.sleep(STEP_SECONDS)
    return f"done at attempt {context.attempt}"
