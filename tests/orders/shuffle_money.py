"""Moves money to and fro: `python -m tests.orders.shuffle_money PROCESSES TRANSFERS ID…`.

Each process makes so many transfers, and prints how many of them moved nothing.
"""

import random
import sys
from decimal import Decimal

import django

from tests.forks import forked


def main(seed: int, transfers: int, ids: list[int]) -> int:
    """Random transfers among `ids` by both strategies; how many the balance did not cover, or lost all their tries."""
    from orders import accounts
    from orders.accounts import Contended, InsufficientFunds

    chance = random.Random(seed)
    refused = 0
    for _ in range(transfers):
        source, target = chance.sample(ids, 2)
        amount = Decimal(chance.randrange(1, 5000)) / 100
        try:
            accounts.transfer(source, target, amount, strategy=chance.choice(("pessimistic", "optimistic")))
        except (InsufficientFunds, Contended):
            refused += 1
    return refused


if __name__ == "__main__":
    django.setup()
    processes, transfers, *ids = [int(part) for part in sys.argv[1:]]
    sys.exit(forked(processes, lambda seed: print(main(seed, transfers, ids))))
