"""What a run may be asked for, and that the same seed gives the same plan."""

import pytest

from dashboard.lab.schema import LabRefused
from dashboard.lab.worker import LIMITS, Plan


@pytest.mark.parametrize("name", LIMITS)
def test_numbers_out_of_bounds_are_refused(name):
    least, most = LIMITS[name]
    for value in (least - 1, most + 1):
        with pytest.raises(LabRefused, match=f"from {least} to {most}"):
            Plan("unsafe", **{name: value})


def test_the_seed_decides_the_kills():
    plans = [Plan("unsafe", kill=5, seed=seed).kills() for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert plans[0] == sorted(plans[0], key=lambda kill: kill[0])


def test_the_seed_decides_the_cuts_apart_from_the_kills():
    plans = [Plan("unsafe", kill=5, cut=5, seed=seed) for seed in (1, 1, 2)]
    assert plans[0].cuts() == plans[1].cuts() != plans[2].cuts()
    assert plans[0].cuts() != plans[0].kills() == Plan("unsafe", kill=5, seed=1).kills()


def test_nobody_is_killed_before_the_first_effect():
    assert {moment for seed in range(20) for moment, _ in Plan("unsafe", items=3, kill=2, seed=seed).kills()} == {1, 2}


def test_a_plan_survives_the_pipe():
    plan = Plan("unsafe", workers=7, remote_ms=3)
    assert Plan(**plan.as_dict()) == plan
