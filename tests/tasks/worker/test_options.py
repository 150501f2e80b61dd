"""How many tasks a worker takes at once."""

import pytest

from tasks.claims import STRATEGIES
from tasks.worker.options import Options
from tasks.worker.page import BATCH_LIMIT


@pytest.mark.parametrize(
    ("strategy", "batch_size", "claimed", "reserved"),
    [
        ("skip_locked", None, 500, 2_000),
        ("skip_locked", 1_000, 500, 1_000),
        ("skip_locked", 20, 20, 20),
        ("optimistic", None, 50, 50),
        ("pessimistic", 20, 1, 1),
    ],
)
def test_a_reservation_may_be_larger_than_a_claim_but_not_than_was_asked_for(strategy, batch_size, claimed, reserved):
    options = Options(strategy=strategy, batch_size=batch_size)
    assert (options.largest_batch, options.largest) == (claimed, reserved)


def test_the_page_has_room_for_every_batch():
    assert all(Options(strategy=strategy).largest <= BATCH_LIMIT for strategy in STRATEGIES)
