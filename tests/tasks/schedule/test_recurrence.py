"""The times of schedules in time zones whose clocks change."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from tasks.support.recurrence import Recurrence, changes_of

BERLIN, NEW_YORK, LORD_HOWE, SANTIAGO = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"


def times(cron: str, zone: str, day: str, number: int) -> list[str]:
    """The wall clock and offset of the first times from the beginning of this day on."""
    found = Recurrence(cron, None, zone)
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) - timedelta(seconds=1)
    at, seen = found.first(start), []
    while at is not None and len(seen) < number:
        seen.append(at)
        at = found.following(at)
    return [f"{at.astimezone(ZoneInfo(zone)):%d %H:%M%z}" for at in seen]


@pytest.mark.parametrize(
    ("cron", "zone", "day", "wanted"),
    [
        # The clock goes from 02:00 to 03:00 on 29 March 2026, and on 25 October from 03:00 back to 02:00.
        ("30 2 * * *", BERLIN, "2026-03-28", ["28 02:30+0100", "29 03:00+0200", "30 02:30+0200"]),
        ("30 2 * * *", BERLIN, "2026-10-24", ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"]),
        ("0 3 * * *", BERLIN, "2026-03-29", ["29 03:00+0200", "30 03:00+0200"]),
        ("0 3 * * *", BERLIN, "2026-10-25", ["25 03:00+0100", "26 03:00+0100"]),
        ("0 * * * *", BERLIN, "2026-03-29", ["29 00:00+0100", "29 01:00+0100", "29 03:00+0200"]),
        (
            "0 * * * *",
            BERLIN,
            "2026-10-25",
            ["25 00:00+0200", "25 01:00+0200", "25 02:00+0200", "25 02:00+0100", "25 03:00+0100"],
        ),
        ("*/30 2 * * *", BERLIN, "2026-03-29", ["30 02:00+0200"]),
        ("*/30 2 * * *", BERLIN, "2026-10-25", ["25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100"]),
        # 8 March and 1 November 2026.
        ("30 2 * * *", NEW_YORK, "2026-03-07", ["07 02:30-0500", "08 03:00-0400", "09 02:30-0400"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31", ["31 01:30-0400", "01 01:30-0400", "02 01:30-0500"]),
        ("*/30 1 * * *", NEW_YORK, "2026-11-01", ["01 01:00-0400", "01 01:30-0400", "01 01:00-0500", "01 01:30-0500"]),
        # Half an hour: 4 October and 5 April 2026.
        ("15 2 * * *", LORD_HOWE, "2026-10-03", ["03 02:15+1030", "04 02:30+1100", "05 02:15+1100"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04", ["04 01:45+1100", "05 01:45+1100", "06 01:45+1030"]),
        # At midnight: 6 September and 5 April 2026.
        ("0 0 * * *", SANTIAGO, "2026-09-05", ["05 00:00-0400", "06 01:00-0300", "07 00:00-0300"]),
        ("30 23 * * *", SANTIAGO, "2026-04-03", ["03 23:30-0300", "04 23:30-0300", "05 23:30-0400"]),
        ("30 2 * * *", "UTC", "2026-03-29", ["29 02:30+0000", "30 02:30+0000"]),
    ],
)
def test_the_rule_at_changes_of_the_clock(cron, zone, day, wanted):
    assert times(cron, zone, day, len(wanted)) == wanted


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE, SANTIAGO, "Africa/Casablanca", "Asia/Kathmandu"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/7 * * * *", "0 */3 * * *", "0,30 0-4 * * *", "59 23 * * sun"])
def test_times_only_ever_go_forward_and_do_not_depend_on_where_one_begins(cron, zone):
    found = Recurrence(cron, None, zone)
    for change in changes_of(ZoneInfo(zone), datetime(2026, 1, 1, tzinfo=UTC)):
        start = change - timedelta(hours=4)
        walked = list(found.due(found.first(start), change + timedelta(hours=4)))
        assert walked == sorted(set(walked))
        for minutes in range(0, 480, 11):  # whoever takes over anywhere comes to the same times
            at = start + timedelta(minutes=minutes)
            assert found.first(at) == next((time for time in walked if time > at), found.first(at))


def test_an_interval_keeps_its_phase_whatever_the_clock_does():
    found = Recurrence(None, 600)
    at = datetime(2026, 3, 29, 0, 5, tzinfo=UTC)
    now = at + timedelta(hours=3, minutes=7, seconds=13)
    assert found.following_now(at, now) == at + timedelta(hours=3, minutes=10)
    assert found.count_due(at, now) == 19
    assert len(list(found.due(at, now))) == 19
    assert found.following_now(at, at) == at + timedelta(minutes=10)


def warnings(cron: str, zone: str, now: str) -> list[str]:
    return [moment.warning for moment in Recurrence(cron, None, zone).forecast(datetime.fromisoformat(now)).changes]


@pytest.mark.parametrize(
    ("cron", "wanted"),
    [
        (
            "30 2 * * *",
            [
                "02:30 does not exist on this day: it runs at 03:00",
                "02:30 occurs twice on this day: it runs at the first",
            ],
        ),
        ("30 12 * * *", []),
        ("30 3 * * *", []),
        (
            "0 * * * *",
            [
                "02:00 does not exist on this day: it does not run then, but at 03:00",
                "02:00 occurs twice on this day: it runs at both",
                "02:00 occurs twice on this day: it runs at both",
            ],
        ),
    ],
)
def test_the_forecast_warns_of_what_the_coming_year_moves_doubles_and_skips(cron, wanted):
    assert warnings(cron, BERLIN, "2026-01-10T12:00:00+00:00") == wanted
    assert warnings(cron, "UTC", "2026-01-10T12:00:00+00:00") == []


def test_the_next_five_times_carry_their_warning_and_stop_at_the_end():
    now = datetime(2026, 3, 27, 12, tzinfo=UTC)
    found = Recurrence("30 2 * * *", None, BERLIN)
    assert [bool(moment.warning) for moment in found.forecast(now).next] == [False, True, False, False, False]
    assert len(found.forecast(now, now + timedelta(days=2)).next) == 2
    assert [moment.at for moment in Recurrence(None, 60).forecast(now).next] == [
        now + timedelta(minutes=minutes) for minutes in range(1, 6)
    ]


def test_there_are_two_changes_a_year():
    assert [f"{at:%m-%d %H:%M}" for at in changes_of(ZoneInfo(BERLIN), datetime(2026, 1, 1, tzinfo=UTC))] == [
        "03-29 01:00",
        "10-25 01:00",
    ]
    assert list(islice(changes_of(ZoneInfo("Asia/Tokyo"), datetime(2026, 1, 1, tzinfo=UTC)), 1)) == []
