"""The published figures: what the page says is what the JSON beside it says, and what the drills found."""

import json

import pytest

from tests.chaos import report
from tests.chaos.account import Summary


def test_the_page_says_what_the_json_says():
    assert report.section_of(report.PAGE) == report.render(json.loads(report.JSON_FILE.read_text()))


def test_runs_are_added_up_and_their_recoveries_pooled():
    runs = [
        Summary(1, 100, {"child": 2, "frozen child": 1}, 0, 5, 1.0, [10.0, 20.0], 3, 50.0, [5], outside={"e-mails": 4}),
        Summary(2, 200, {"child": 1, "group": 1}, 1, 6, 2.0, [30.0], 1, 70.0, forbidden=[7, 7], outside={"e-mails": 5}),
    ]
    course = report.added_up(runs)
    assert (course["tasks"], course["kills"], course["freezes"], course["outages"]) == (300, 4, 1, 1)
    assert course["recovery_ms"] == {"p50": 20.0, "p99": 30.0, "max": 30.0}
    assert (course["permitted"], course["late"], course["forbidden"], course["oldest_repeat_ms"]) == (4, 1, 2, 70.0)
    assert course["outside"] == {"e-mails": 9}


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentiles_are_values_that_were_measured(share, value):
    assert report.percentile(list(range(1, 101)), share) == value


def test_no_finding_allows_the_rule_of_three_and_no_more():
    assert report.bound(0, 3000) == "0 of 3,000: below 0.100% (3/N) with 95 % confidence"
    assert report.bound(2, 3000) == "2 of 3,000"
