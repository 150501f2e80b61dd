"""When a part is made before its tab asks: a look lasts for a second, a tab comes every two."""

import time

import pytest
from django.http import HttpRequest

from dashboard.live import snapshots
from dashboard.live.prefetch import LATE_SECONDS, LEAD_SECONDS, Prefetched, PrefetchThread
from dashboard.live.snapshots import Latest
from tasks.panels import Snapshot

LIMIT = 1.0


def part_asked(*times: float, snapshot: Snapshot | None = None) -> Prefetched:
    part = Prefetched(snapshots.EVERYTHING, 2.0, print, HttpRequest())
    for at in times:
        part.note(at, part.request, snapshot)
    return part


@pytest.fixture
def a_second(settings) -> None:
    settings.SHARED_LOOK_SECONDS = LIMIT


def latest(began: float) -> Latest:
    return Latest(Snapshot(began=began), began + LIMIT, began + LIMIT * snapshots.GRACE)


@pytest.mark.usefixtures("a_second")
def test_a_lone_tab_s_part_is_made_shortly_before_it_comes() -> None:
    seen = latest(100.0)
    assert part_asked(100.0, snapshot=seen.snapshot).due(100.0, seen) == (102 - LEAD_SECONDS, 102)


@pytest.mark.usefixtures("a_second")
def test_it_is_made_of_the_look_that_there_is_when_that_is_fresh_enough() -> None:
    part, of_another_part = part_asked(100.0), latest(101.5)
    assert part.due(101.5, of_another_part) == (102 - LEAD_SECONDS, 102)
    part.snapshot = of_another_part.snapshot
    assert part.due(101.7, of_another_part) is None


@pytest.mark.usefixtures("a_second")
def test_a_look_is_renewed_when_it_is_too_old_and_not_before() -> None:
    seen = latest(101.0)
    tabs = part_asked(*(99.5 + n / 10 for n in range(20)), snapshot=seen.snapshot)
    due, comes = tabs.due(101.5, seen)
    assert seen.ends <= due < comes <= seen.serves_until


@pytest.mark.usefixtures("a_second")
def test_a_part_of_a_longer_look_is_made_once_for_each() -> None:
    began = 100.0
    seen = Latest(Snapshot(began=began), began + 60, began + 60 * snapshots.GRACE)
    part = part_asked(began + 1, snapshot=seen.snapshot)
    assert part.due(began + 1, seen) is None
    part = part_asked(began + 88.5, snapshot=seen.snapshot)
    assert part.due(began + 88.5, seen) == pytest.approx((began + 90.5 - LEAD_SECONDS, began + 90.5))


def test_it_is_fresh_still_when_the_tab_comes(settings) -> None:
    settings.SHARED_LOOK_SECONDS = 0.2
    assert part_asked(100.0).due(100.0, Latest(Snapshot(), 100.2, 100.3)) == pytest.approx((102 - 0.1, 102))


def test_of_parts_that_are_due_that_one_is_made_first_whose_tab_comes_first(settings) -> None:
    settings.SHARED_LOOK_SECONDS = LIMIT
    snapshots.forget()
    idle, now = PrefetchThread(), time.monotonic()  # never started
    for key, at in (("later", now - 1.7), ("sooner", now - 1.9)):
        idle.parts[key] = part_asked(at)
    assert idle.next_due()[1] is idle.parts["sooner"]


def test_a_tab_that_has_come_is_expected_two_seconds_later_alone() -> None:
    part = part_asked(100.0, 102.05, 104.1)
    assert list(part.asked_at) == [104.1]
    assert list(part_asked(100.0, 100.5, 102.0).asked_at) == [100.5, 102.0]


@pytest.mark.usefixtures("a_second")
def test_a_tab_that_does_not_come_is_given_up() -> None:
    part = part_asked(100.0)
    assert part.due(102 + LATE_SECONDS / 2, latest(90.0)) is not None
    assert part.due(102.1 + LATE_SECONDS, latest(90.0)) is None
    assert not part.asked_at
