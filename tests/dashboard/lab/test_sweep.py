"""The picture of a sweep: where the lines of two patterns cross, and what is said when they do not."""

import re

from dashboard.lab import charts
from tests.dashboard.lab.cases import case

HELD, CLAIM = "skip_locked_held", "optimistic_claim"


def drawn(held: list[float], claim: list[float], values: tuple[int, ...] = (0, 1, 5, 20)) -> charts.Sweep:
    cases = [
        case(pattern, speed, plan={"work_ms": value})
        for pattern, speeds in ((HELD, held), (CLAIM, claim))
        for value, speed in zip(values, speeds, strict=True)
    ]
    return charts.draw_sweep(cases, "work_ms")


def test_lines_that_cross_are_named_with_the_values_on_either_side():
    found = drawn([450, 470, 260, 150], [900, 960, 280, 100])
    assert found.conclusion == [
        "optimistic_claim is ahead up to work_ms=1, skip_locked_held from work_ms=20 on: their lines cross in between."
    ]
    assert found.conclusion[0] in found.summary
    [crossing] = found.crossings
    assert 4000 < crossing.x < 6000  # between the third and the fourth of four values
    ys = [y for curve in found.curves for _, y in curve.points]
    assert min(ys) < crossing.y < max(ys)


def test_a_lead_within_the_noise_is_no_crossing():
    found = drawn([100, 100, 100, 100], [120, 110, 90, 81])
    assert found.crossings == []
    assert found.conclusion == [
        "skip_locked_held and optimistic_claim are equal within the noise over this range of work_ms."
    ]
    assert drawn([100, 100, 100, 100], [125, 110, 90, 80]).crossings != []


def test_lines_that_never_cross_say_who_is_ahead():
    assert drawn([100, 100, 100, 100], [300, 200, 150, 110]).conclusion == [
        "optimistic_claim is never behind skip_locked_held over this range of work_ms: their lines do not cross."
    ]


def test_lines_may_cross_more_than_once():
    assert len(drawn([100, 200, 100, 200], [200, 100, 200, 100]).crossings) == 3


def test_every_measured_value_is_a_dot_and_coordinates_are_whole():
    found = drawn([450, 470, 260, 150], [900, 960, 280, 100])
    assert [curve.dots.count("h0") for curve in found.curves] == [4, 4]
    assert re.fullmatch(r"(M\d+ \d+h0)+", found.curves[0].dots)
    assert [line.label for line in found.grid] == ["100", "200", "500", "1,000"]


def test_one_value_is_no_curve():
    assert charts.draw_sweep([case(HELD), case(CLAIM)], "work_ms") is None
