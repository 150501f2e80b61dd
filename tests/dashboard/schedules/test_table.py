"""The table of schedules: when each runs next, what became of its last time, and how to find one among many."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.schedules.rows import in_words
from tasks.models import Intervention
from tasks.operations import schedules
from tasks.support.audit import Who
from tests.dashboard.schedules.made import NOTHING, PAGE, declared, made
from tests.html import flat
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db
WHO = Who("ann", "page")
TEN_THOUSAND = """
INSERT INTO tasks_schedule (name, task_path, cron, next_at, last_task_id)
SELECT 'job ' || number, 'app.work', number % 60 || ' * * * *', now() + number % 60 * interval '1 min', number
FROM generate_series(1, 10000) AS number
"""


def page(query: str = "", *groups: str) -> str:
    answer = client_of(*(groups or ("Operators",))).get(PAGE + query)
    assert answer.status_code == 200
    return answer.text


def table(query: str = "", *groups: str) -> str:
    return flat(page(query, *groups).split('id="schedules"')[1].partition("</table>")[0])


def row(name: str = "nightly", *groups: str) -> str:
    return next(
        line for line in table("", *groups).split("<tr ")[1:] if line.split('title="')[1].startswith(f'{name}"')
    )


def names(query: str = "") -> list[str]:
    return [line.partition('"')[0] for line in table(query).split('<th scope="row" class="one-line" title="')[1:]]


def test_a_row_says_when_and_what_became_of_the_last_time():
    task = rows.failed()
    made(timezone="Europe/Berlin", missed="once", last_at=timezone.now(), last_outcome="enqueued", last_task_id=task.pk)
    text = row()
    assert "every day at 03:00" in text
    assert '<code translate="no">0 3 * * *</code>' in text
    assert "Europe/Berlin</span>" in text
    assert ">in 59 min<" in text
    assert '<span class="verdict verdict-failed">Failed</span>' in text
    assert f'href="/admin/tasks/task/{task.pk}/">#{task.pk}<' in text
    assert "once · skip" in text
    assert "Missed times: One task for all. Last task unfinished: Skip the tick." in text


def test_a_skipped_time_names_the_task_that_it_met():
    made(last_at=timezone.now(), last_outcome="skipped", held_by_task_id=88, last_task_id=88)
    assert '<span class="verdict is-stuck">Skipped</span>' in row()
    assert 'href="/admin/tasks/task/88/"' in row()


def test_late_paused_ended_and_broken_off_are_told_apart():
    made("late", due_in=-120), made("just due", due_in=-5), made("over", next_at=None, ended_at=timezone.now())
    made("to come", next_at=None)
    made("paused", paused=True, paused_by="ann"), made("broken", paused=True, problem="Its code is gone.")
    assert '<span class="verdict is-stuck">Late</span>' in row("late")
    assert "Late" not in row("just due")
    assert ">ended<" in row("over")
    assert "a worker computes it" in row("to come")
    assert "Paused</span>by ann" in row("paused")
    assert "Broken off</span>Its code is gone." in row("broken")
    assert [names(f"?state={state}") for state in ("late", "broken", "paused", "over")] == [
        ["late"], ["broken"], ["paused"], ["over"],
    ]  # fmt: skip


def test_what_code_declares_is_marked_and_what_overrides_it():
    declared(), declared("same", cron="0 4 * * *")
    assert 'title="cron">overridden</span>' in row(NOTHING)
    assert 'data-action="revert-schedule"' in row(NOTHING)
    assert ">in code</span>" in row("same")
    assert 'data-action="revert-schedule"' not in row("same")
    assert 'data-action="delete-schedule"' not in row("same")


def test_a_search_finds_names_and_tasks_and_pages_go_on():
    for number in range(60):
        made(f"job {number:02}", task_path=f"shop.tasks.sync_{number % 2}")
    assert names() == [f"job {number:02}" for number in range(50)]
    assert names("?after=job+49") == [f"job {number:02}" for number in range(50, 60)]
    assert 'href="?after=job+49" rel="next"' in page()
    assert names("?q=JOB+07") == ["job 07"]
    assert len(names("?q=sync_1")) == 30
    assert "No schedule matches." in table("?q=nothing")


def test_ten_thousand_schedules_cost_as_many_statements_as_one(settings):
    settings.SHARED_LOOK_SECONDS = 0
    client = client_of("Operators")

    def statements() -> int:
        with CaptureQueriesContext(
            connection,
        ) as asked:
            assert client.get(PAGE).status_code == 200
        return len(asked)

    made("a first one", due_in=-300, last_at=timezone.now(), last_outcome="enqueued", last_task_id=1)
    few = statements()
    with connection.cursor() as cursor:
        cursor.execute(TEN_THOUSAND)
    assert statements() == few
    assert "10,001" in page()


@pytest.mark.parametrize("group", ["Viewers", "Operators"])
def test_what_a_person_may_not_do_is_disabled_and_says_which_right_is_missing(group):
    made()
    text = page("", group)
    button = flat(row("nightly", group)).split('data-action="run-schedule"')[1].partition(">")[0]
    assert ("disabled" in button) == (group == "Viewers")
    assert ('id="right-tasks.run_schedule"' in text) == (group == "Viewers")
    assert ("You lack the right tasks.pause_schedule" in text) == (group == "Viewers")


def test_hostile_names_are_text():
    made("<script>alert(1)</script>", task_path="</td><i>", paused=True, problem="<u>")
    assert "<script>alert" not in page()
    assert "</td><i>" not in page()


def test_htmx_gets_the_table_with_its_search():
    made(), made("other")
    panel = client_of("Viewers").get(f"{PAGE}?q=nightly", headers={"HX-Request": "true"}).text
    assert "<html" not in panel
    assert 'title="nightly"' in panel
    assert 'title="other"' not in panel


def test_the_task_and_the_palette_and_the_audit_lead_to_the_schedule():
    made()
    task_id = schedules.run_now("nightly", WHO)
    client = client_of("Operators")
    link = f"{PAGE}?q=nightly#schedule-"
    assert link in flat(client.get(f"/admin/tasks/task/{task_id}/").text)
    assert "run by hand" in client.get(f"/admin/tasks/task/{task_id}/").text
    [found] = client.get("/admin/ops/palette/", {"q": "NIGHT"}).json()["found"]
    assert (found["label"], found["url"].startswith(link)) == ("Schedule nightly", True)
    assert Intervention.objects.get().target == "schedule:nightly"
    assert link in client.get("/admin/ops/audit/", {"target": "schedule:nightly"}).text


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 min"),
        ("*/7 * * * *", "Every seventh minute of every hour"),
        ("5 * * * *", "every hour at :05"),
        ("30 2 * * *", "every day at 02:30"),
        ("30 2 * * 0", "Sunday at 02:30"),
        ("30 2 * * 7", "Sunday at 02:30"),
        ("30 2 * * 1", "Monday at 02:30"),
        ("0 4 1 * *", "day 1 of the month at 04:00"),
        ("30 3 * * mon-fri", "At 03:30 on Monday through Friday"),
    ],
)
def test_expressions_in_words(cron, words):
    assert in_words(cron, None).text == words
    assert in_words(None, 5400).text == "every 90 min"
