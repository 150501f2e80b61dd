"""Moves money to and fro: `python -m tests.orders.shuffle_money SEED TRANSFERS ID…` prints how many moved nothing."""

import random
import sys
from decimal import Decimal

import django


def main(seed: int, transfers: int, ids: list[int]) -> int:
    """Random transfers among `ids` by both strategies; how many the balance did not cover, or lost all their tries."""
    from orders import accounts
    from orders.exceptions import Contended, InsufficientFunds

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
    numbers = [int(part) for part in sys.argv[1:]]
    print(main(numbers[0], numbers[1], numbers[2:]))
