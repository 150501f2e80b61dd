"""The oracles of a drill see what is wrong, and excuse only what a strike explains."""

import json
from collections import namedtuple
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from tests.chaos.account import Account
from tests.chaos.drill import Outage, Strike
from tests.chaos.duties import Duties
from tests.chaos.effects.holdings import Holding
from tests.chaos.world import is_after
from tests.dashboard.alerts.receiver import Receiver
from tests.ledger import Effect, most_at_once, most_in_a_second

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


def test_an_attempt_that_found_a_row_locked_is_written_and_no_repetition():
    first, others = effect(1, 1, 2, UNTOUCHED), [effect(1, 3, None, STRUCK), effect(1, 20, 21, UNTOUCHED)]
    account = Account(Past())
    assert list(account.repeated([first, *others], {(1, 1, UNTOUCHED)})) == others[:1]
    assert list(account.repeated([first, *others], {(2, 1, UNTOUCHED), (1, 2, UNTOUCHED)})) == [first, others[0]]


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


@pytest.mark.parametrize(
    ("effects", "most"),
    [
        ([effect(1, 1, 3, UNTOUCHED), effect(2, 2, 4, UNTOUCHED)], 2),
        ([effect(1, 1, 2, UNTOUCHED), effect(2, 3, 4, UNTOUCHED)], 1),
        ([effect(1, 9, 20, STRUCK), effect(2, 11, 12, UNTOUCHED)], 1),  # its slot is another one's by then
        ([effect(1, 9, None, STRUCK), effect(2, 9.5, 12, UNTOUCHED)], 2),
        ([effect(1, 1, None, UNTOUCHED), effect(2, 5, 6, UNTOUCHED)], 2),  # nobody knows of its end
    ],
)
def test_effects_of_a_limit_count_until_they_end_or_their_worker_is_struck(effects, most):
    assert most_at_once(effects, Account(Past()).struck_at) == most


def test_a_rate_is_counted_in_the_worst_second():
    assert most_in_a_second([effect(1, began, None, UNTOUCHED) for began in (0.2, 0.9, 1.1, 1.3)]) == 3


Tick = namedtuple("Tick", "at task_id")


@pytest.mark.parametrize(
    ("ticks", "missed", "doubled"),
    [
        ([(0, 1), (1, 2), (2, 3)], 0, 0),
        ([(0, 1), (2, 3)], 1, 0),
        ([(0, 1), (1, 2), (1, 4), (2, 3)], 0, 1),
        ([(0, 1), (1, 1), (2, 3)], 0, 1),
    ],
)
def test_each_second_ticks_once_and_makes_one_task(ticks, missed, doubled):
    found = Duties(Receiver(), first_tick=at(0)).tick_figures([Tick(at(when), task) for when, task in ticks], at(3))
    assert found == {"ticks": len(ticks), "ticks missed": missed, "ticks doubled": doubled}


def message(queue: str, state: str, number: str) -> tuple[str, dict[str, str], bytes]:
    return "/", {}, json.dumps({"title": f"Nobody serves {queue}.", "state": state, "id": number}).encode()


def test_each_incident_is_told_twice_and_a_second_copy_has_the_same_id():
    told = [message("drill-0", "opened", "a"), message("drill-0", "opened", "a"), message("drill-0", "resolved", "b")]
    kept = Duties(Receiver(posts=told), incidents=["drill-0"])
    assert kept.alert_figures() == {"incidents": 1, "alerts missed": 0, "alerts doubled": 0}
    kept.channel.posts = [*told[:2], message("drill-0", "opened", "c")]
    assert kept.alert_figures() == {"incidents": 1, "alerts missed": 1, "alerts doubled": 1}
