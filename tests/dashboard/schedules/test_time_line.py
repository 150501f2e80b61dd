"""The time line: what ran in the last day, what is late and what comes, of schedules and of commands."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from dashboard.schedules import timeline
from tasks.models import CommandRun, ExpectedCommand, Tick
from tests.dashboard.schedules.made import PAGE, made
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
OF_NOBODY = 10**9  # a task that is gone; 1 may be one that a test makes


def ticked(name: str, hours_ago: float, outcome: str = "enqueued", task_id: int = OF_NOBODY) -> None:
    held = {"held_by_task_id": OF_NOBODY} if outcome == "skipped" else {}
    task = {"task_id": task_id} if outcome in ("enqueued", "manual") else {}
    Tick.objects.create(schedule_name=name, at=timezone.now() - hours_ago * HOUR, outcome=outcome, **held, **task)


def ran(name: str, hours_ago: float, outcome: str = "succeeded") -> None:
    at = timezone.now() - hours_ago * HOUR
    CommandRun.objects.create(name=name, argv=["x"], outcome=outcome, started_at=at, finished_at=at)


def totals() -> dict[str, int]:
    found = timeline.line()
    return {kind: number for kind in timeline.KINDS if (number := found.total(kind))}


def test_what_ran_and_what_went_wrong():
    ticked("a", 1), ticked("b", 2, "manual"), ticked("c", 3, "skipped"), ticked("d", 4, "missed")
    ticked("e", 5, task_id=rows.failed().pk)
    ticked("long ago", 30)
    ran("backup", 1), ran("backup", 2, "failed"), ran("backup", 3, "skipped"), ran("backup", 40)
    assert totals() == {"ran": 3, "failed": 2, "skipped": 2, "missed": 1}


def test_what_comes_is_counted_up_to_a_day():
    made("cron", cron="0 * * * *", due_in=10), made("every", cron=None, every_seconds=1, due_in=10)
    made("ends", cron=None, every_seconds=60, due_in=30, ends_at=timezone.now() + timedelta(minutes=10))
    made("tomorrow", due_in=80_000), made("later", due_in=200_000)
    made("paused", due_in=60, paused=True)
    found = timeline.line()
    coming = found.total("coming")
    seconds = int((found.until - found.now).total_seconds())
    assert abs(coming - (seconds - 10 + 24 + 10 + 1)) <= 4
    assert found.whole_until is None
    names = {name for slot in found.slots for name in slot.names.get("coming", ())}
    assert names == {"cron", "every", "ends", "tomorrow"}


def test_what_is_late_stands_where_it_was_due():
    made("late", due_in=-2 * 3600), made("very late", due_in=-300_000), made("due just now", due_in=-5)
    ExpectedCommand.objects.create(name="backup", every=HOUR, since=timezone.now() - 3 * HOUR)
    found = timeline.line()
    assert found.late == 3
    assert found.slots[0].names["late"] == ["very late"]
    assert {name for slot in found.slots for name in slot.names.get("late", ())} == {"late", "very late", "backup"}


def test_many_are_counted_so_far_and_that_is_said(monkeypatch):
    for number in range(12):
        ticked("a", 1 + number)
        made(f"job {number}", cron="*/10 * * * *", due_in=60 * number + 30)
    monkeypatch.setattr(timeline, "MOST_TICKS", 5)
    monkeypatch.setattr(timeline, "MOST_TIMES", 50)
    monkeypatch.setattr(timeline, "MOST_SCHEDULES", 10)
    found = timeline.line()
    assert (found.total("ran"), found.total("coming")) == (5, 50)
    assert found.whole_since is not None
    assert found.now < found.whole_until < found.until
    text = client_of("Viewers").get(f"{PAGE}line/").text
    assert "ticks and runs are counted from here on" in text
    assert "coming times are counted up to here" in text


def test_the_chart_has_its_values_as_words_and_as_a_table():
    ticked("nightly\N{BULLET}", 1)
    made("soon", cron=None, every_seconds=14 * 3600, due_in=600)  # twice within a day at any time of it
    text = client_of("Viewers").get(PAGE).text
    assert "1 ran: nightly\N{BULLET}" in text
    assert "1 coming: soon" in text
    assert "Last day: 1 ran, 0 failed, skipped or missed, late now: 0, next day: 2." in text
    table = text.split('id="line-data"')[1].partition("</table>")[0]
    assert ("nightly" in table, "soon" in table) == (True, True)


def test_a_slot_names_a_few_and_says_that_there_are_more():
    for number in range(8):
        ticked(f"job {number}", 1)
    slot = next(slot for slot in timeline.line().slots if slot.numbers)
    assert str(slot).endswith("8 ran: job 0, job 1, job 2, job 3, …")


def test_the_newest_ticks_are_found_without_reading_the_rest():
    with connection.cursor() as cursor:
        window = {"since": timezone.now(), "slot": 1800, "most": timeline.MOST_TICKS}
        cursor.execute(
            "INSERT INTO tasks_tick (schedule_name, at, outcome, task_id) "
            "SELECT 'a', now() - number * interval '1 s', 'enqueued', number FROM generate_series(1, 20000) AS number"
        )
        cursor.execute("ANALYZE tasks_tick")
        cursor.execute(f"EXPLAIN {timeline.TICKS}", window)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Scan Backward using tasks_tick_pkey" in plan


def test_the_line_is_for_those_who_see_schedules():
    assert client_of("Viewers").get(f"{PAGE}line/").status_code == 200
    assert client_of().get(f"{PAGE}line/").status_code == 403
