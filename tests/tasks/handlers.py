"""Task functions that the tests enqueue and run, each declared once."""

import logging
from datetime import date, datetime
from decimal import Decimal
from typing import Literal
from uuid import UUID

from django.db import transaction

from tasks.compat import TaskContext
from tasks.framework.decorator import task
from tasks.models import Queue


@task
def nothing(*args: object, **kwargs: object) -> None:
    """Takes anything and does nothing."""


@task
def echo(value: object = None) -> object:
    return value


@task
def add(first: int, second: int) -> int:
    return first + second


@task
async def add_async(first: int, second: int) -> int:
    return first + second


@task
def fail(message: str = "it failed") -> None:
    raise ValueError(message)


@task(max_attempts=1)
def fail_once(message: str = "it failed") -> None:
    raise ValueError(message)


@task(takes_context=True)
def attempt_number(context: TaskContext) -> int:
    return context.attempt


@task(ordering_key=lambda account, *rest: account)
def by_account(account: str, *rest: object) -> str:
    return account


@task(ordering_key=lambda account: account, ordered_by_commit=True)
def by_account_and_commit(account: str) -> str:
    return account


@task
def log_in(user: str, password: object, *tokens: object, note: object = None) -> None:
    """Takes secrets by position, by name and in its rest."""


@task(takes_context=True)
def log_in_with_context(context: TaskContext, password: str, *rest: object) -> None:
    """Takes a secret behind the context."""


@task
def typed(
    count: int,
    text: str,
    is_loud: bool,
    ratio: float,
    price: Decimal,
    day: date,
    at: datetime,
    ref: UUID,
    names: list[str],
    extra: dict[str, int],
    colour: Literal["red", "blue"],
    limit: int | None,
    password: str = "swordfish",
    *,
    thing: object = None,
) -> None:
    """Takes one of each type."""


@task
def default_before_rest(first: int = 1, *rest: int, **named: int) -> None:
    """Takes more of both kinds."""


@task
def countdown(number: int) -> None:
    """Enqueues itself again until it is at zero."""
    if number:
        countdown.enqueue(number - 1)


@task
def write_then_fail() -> None:
    Queue.objects.create(name="written")
    raise ValueError("after the write")


@task
def break_the_transaction() -> None:
    Queue.objects.bulk_create([Queue(name="twice"), Queue(name="twice")])


@task
def fail_in_joined_atomic() -> None:
    with transaction.atomic(savepoint=False):
        Queue.objects.create(name="lost")
        raise ValueError("the block gives up")


@task(ordering_key=lambda key, number: key, takes_context=True)
def fail_first_by_key(context: TaskContext, key: str, number: int) -> int:
    if context.attempt == 1:
        raise ValueError("not yet")
    return number


def undeclared(*args: object) -> None:
    """A function that no decorator has touched."""


@task
def leave_a_transaction_open() -> None:
    transaction.set_autocommit(False)
    Queue.objects.create(name="lost")


@task(takes_context=True)
def count_up(context: TaskContext, steps: int, token: str = "") -> object:
    """Reports each step and keeps it; the first attempt fails half way."""
    start = context.state or 0
    for step in range(start, steps):
        logging.getLogger("shop").warning("step %s of %s with %s", step, steps, token)
        context.report((step + 1) / steps, f"step {step + 1}, {token}")
        context.checkpoint(step + 1)
        if context.attempt == 1 and step + 1 == steps // 2:
            raise ValueError("half way")
    return start


@task(takes_context=True, backoff=lambda attempt: 0)
def confide(context: TaskContext, text: str) -> object:
    """Tells its argument in every way, and fails the first time."""
    logging.getLogger("shop").warning("heard %s", text)
    context.report(0.5, f"about {text}")
    context.checkpoint({"kept": text})
    if context.attempt == 1:
        raise ValueError(f"no luck with {text}")
    return {"kept": context.state["kept"], "text": text}


@task
def chatter(lines: int, level: str = "INFO") -> None:
    for line in range(lines):
        logging.getLogger("shop").log(logging.getLevelName(level), "line %s", line)


@task(log_level="DEBUG", max_attempts=1)
def chatter_in_detail(text: str) -> None:
    logging.getLogger("shop.detail").debug(text)
    raise ValueError("no luck")


@task(unique_key=True)
def once_per_arguments(first: int, second: int = 0) -> int:
    return first + second


@task(unique_key=lambda document, *rest: document)
def index(document: str | None, *rest: object) -> str | None:
    return document


@task(unique_key=lambda document, *rest: document, on_duplicate="replace")
def index_latest(document: str | None, *rest: object) -> str | None:
    return document


@task(unique_key=lambda document, *rest: document, unique_while="queued")
def index_again(document: str | None, *rest: object) -> str | None:
    return document


@task(concurrency_key=lambda account, *rest: account, concurrency_limit=3)
def at_most_three(account: str | None, *rest: object) -> None: ...
