"""The oracles of a drill see what is wrong, and excuse only what a strike explains."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from tests.chaos.account import Account
from tests.chaos.drill import Outage, Strike
from tests.chaos.effects.holdings import Holding
from tests.chaos.world import is_after
from tests.ledger import Effect

START = datetime(2030, 1, 1, tzinfo=UTC)
STRUCK, UNTOUCHED = 11, 12


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def effect(task_id: int, began: float, ended: float | None, pid: int) -> Effect:
    return Effect(int(began * 1000), task_id, 1, pid, at(began), None if ended is None else at(ended))


@dataclass
class Past:
    """What an account asks a drill for, without one: at 10 s one worker was struck."""

    strikes: list[Strike] = field(default_factory=lambda: [Strike(at(10), "child", frozenset({STRUCK}))])
    outages: list[Outage] = field(default_factory=list)


@pytest.mark.parametrize(
    ("first", "is_excused"),
    [
        (effect(1, 9, None, STRUCK), True),
        (effect(1, 9, 12, STRUCK), True),  # it was frozen, and went on
        (effect(1, 9, 9.9, STRUCK), True),
        (effect(1, 8, 9.5, STRUCK), False),  # long written by then
        (effect(1, 9, 9.9, UNTOUCHED), False),
        (effect(1, 9, None, UNTOUCHED), False),
    ],
)
def test_only_what_a_strike_kept_from_being_written_may_be_repeated(first, is_excused):
    account = Account(Past())
    [repeated] = account.repeated([first, effect(1, 20, 21, UNTOUCHED), effect(2, 1, 2, UNTOUCHED)])
    assert repeated == first
    assert account.is_excused(repeated) is is_excused


def test_an_outage_between_an_end_and_the_strike_excuses_too():
    account = Account(Past(outages=[Outage(at(5), at(7))]))
    assert account.is_excused(effect(1, 4, 6, STRUCK))
    assert not account.is_excused(effect(1, 8, 9, STRUCK))
    assert not account.is_excused(effect(1, 4, 6, UNTOUCHED))


@pytest.mark.parametrize(
    ("earlier", "later", "collide"),
    [
        (effect(1, 1, 2, UNTOUCHED), effect(2, 3, 4, UNTOUCHED), False),
        (effect(1, 1, 3.5, UNTOUCHED), effect(2, 3, 4, UNTOUCHED), True),
        (effect(2, 1, 2, UNTOUCHED), effect(1, 3, 4, UNTOUCHED), True),
        (effect(1, 1, None, UNTOUCHED), effect(2, 3, 4, UNTOUCHED), True),
        (effect(1, 9, 20, STRUCK), effect(1, 11, 12, UNTOUCHED), False),  # after the thaw nothing of it counts
        (effect(1, 9, 20, STRUCK), effect(1, 9.5, 9.6, UNTOUCHED), True),
    ],
)
def test_two_of_a_key_neither_at_once_nor_out_of_turn(earlier, later, collide):
    assert Account(Past()).collide(earlier, later) is collide


@pytest.mark.parametrize(
    ("fence", "began", "struck", "is_right"),
    [(2, 3.0, None, True), (1, 3.0, None, False), (2, 1.5, None, False), (2, 1.5, 1.2, True)],
)
def test_a_lock_is_given_on_when_it_is_free_and_with_a_higher_fence(fence, began, struck, is_right):
    earlier = Holding(1, "lock", 1, STRUCK, at(1), at(2))
    later = Holding(2, "lock", fence, UNTOUCHED, at(began), at(4))
    assert is_after(earlier, later, struck and at(struck)) is is_right
