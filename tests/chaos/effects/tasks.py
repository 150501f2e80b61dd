"""Handlers that reach out of the queue while their worker may be killed: to a mail server, to accounts, to Redis."""

import random
import time
from decimal import Decimal

from orders import accounts
from orders.accounts import AccountError, Contended
from orders.shipping import Mode, ship
from tasks.compat import TaskContext
from tasks.framework.decorator import task
from tasks.locking import lock
from tests.chaos.effects.holdings import holding
from tests.ledger import effect

TTL_SECONDS = 5  # a starved process renews it late, and would lose it by right
WAIT_SECONDS = 60
HOLD_SECONDS = 0.02
STRATEGIES = ("pessimistic", "optimistic")


@task(takes_context=True)
def mail(context: TaskContext) -> None:
    """Send the e-mail of one order: at least once."""
    with effect(int(context.task_result.id), context.attempt):
        ship(Mode.SEND_FIRST, limit=1)


@task(takes_context=True)
def move_money(context: TaskContext, seed: int, ids: list[int]) -> None:
    """Transfer between two of the accounts, by either strategy; nothing when the balance does not cover it."""
    chance = random.Random(f"{seed} {context.task_result.id}")
    source, target = chance.sample(ids, 2)
    amount = Decimal(chance.randrange(1, 5000)) / 100
    with effect(int(context.task_result.id), context.attempt):
        try:
            accounts.transfer(source, target, amount, strategy=chance.choice(STRATEGIES))
        except (AccountError, Contended):
            return


@task(takes_context=True)
def hold(context: TaskContext, name: str) -> None:
    """Work under a lock that Redis keeps; what was done under which fence is written down."""
    with (
        effect(int(context.task_result.id), context.attempt),
        lock(name, ttl=TTL_SECONDS, wait=WAIT_SECONDS, backend="redis") as held,
        holding(name, held.fence),
    ):
        time.sleep(HOLD_SECONDS)
