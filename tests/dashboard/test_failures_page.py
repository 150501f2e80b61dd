"""The page of failures: what it groups, finds and counts, and what can be done with all of a kind."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard import failures
from dashboard.attention import inbox
from dashboard.failures import FailureFilter, kinds
from tasks.models import Attempt, BulkRun, Task
from tasks.operations.filters import TaskFilter
from tasks.panels import Snapshot
from tasks.support.audit import Who
from tests.html import flat
from tests.people import client_of, person
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db
PAGE = "/admin/ops/failures/"
RIGHTS = {
    "requeue": "tasks.requeue_task", "quarantine": "tasks.edit_task", "acknowledge": "dashboard.acknowledge",
}  # fmt: skip
TAG = re.compile("<[^>]*>")
DECLINED, LOST = "aaaaaaaaaaaa app/tasks.py:charge", "bbbbbbbbbbbb abandoned"


@pytest.fixture
def viewer():
    return client_of("Viewers")


def fail(
    fingerprint: str = DECLINED, *, status: str = "FAILED", ago: timedelta = timedelta(minutes=1), **columns: str
) -> Task:
    """A task in this state whose latest attempt failed so."""
    make = rows.failed if status == "FAILED" else rows.ready
    task = make(task_path=columns.pop("task_path", "app.tasks.charge"), attempt=1)
    error = columns.pop("exception_class", "app.errors.Declined")
    text = f"Traceback\n{error}: {columns.pop('message', f'order {task.pk}')}"
    Attempt.objects.create(
        task=task, number=1, worker_id="w1", outcome="failed", exception_class=error, traceback=text,
        fingerprint=fingerprint, finished_at=timezone.now() - ago, **columns,
    )  # fmt: skip
    return task


def shown(client, query: str = "") -> list[tuple[str, str, str]]:
    """Each line of the page: its hash, its attempts and how many tasks are FAILED now."""
    found = re.findall(r'<tr id="failure-([0-9a-f]{12})">(.*?)</tr>', client.get(PAGE + query).text, re.DOTALL)
    numbers = ((key, re.findall(r'class="number">(.*?)</td>', row, re.DOTALL)) for key, row in found)
    return [(key, *(TAG.sub("", cell).strip() for cell in cells)) for key, cells in numbers]


def test_attempts_are_grouped_by_fingerprint_the_latest_first(viewer):
    fail(ago=timedelta(hours=2)), fail(), fail(status="READY")
    fail(LOST, ago=timedelta(minutes=5), exception_class="tasks.exceptions.Abandoned")
    [declined, lost] = kinds(FailureFilter())
    assert (declined.number, lost.number) == (3, 1)
    assert (declined.error, declined.place) == ("Declined", "app/tasks.py:charge")
    page = flat(viewer.get(PAGE).text)
    assert page.index("Declined") < page.index("Abandoned")
    assert "tasks.py:charge" in page
    assert "charge · abandoned" in page
    assert f"order {declined.task_id}" in page


def test_first_seen_counts_all_time_and_the_rest_the_chosen_time():
    fail(ago=timedelta(days=20)), fail(ago=timedelta(hours=3)), fail(ago=timedelta(minutes=2))
    numbers = {since: [kind.number for kind in kinds(FailureFilter(since=since))] for since in ("1h", "24h", "30d")}
    assert numbers == {"1h": [1], "24h": [2], "30d": [3]}
    [kind] = kinds(FailureFilter(since="1h"))
    assert timezone.now() - kind.since > timedelta(days=19)


def test_the_trend_cuts_the_time_into_parts():
    fail(ago=timedelta(seconds=1)), fail(ago=timedelta(seconds=2)), fail(ago=timedelta(minutes=59, seconds=50))
    [kind] = kinds(FailureFilter(since="1h"))
    assert (kind.trend[0], kind.trend[-1], sum(kind.trend), len(kind.trend)) == (1, 2, 3, failures.PARTS)


@pytest.mark.parametrize(
    ("query", "keys"),
    [("q=declined", "a"), ("q=APP.TASKS.SEND", "b"), ("q=send.py", "b"), ("q=nothing", ""), ("queue=mail", "a"),
     ("release=r2", "b"), ("queue=mail&release=r2", ""), ("since=2h&until=1h", "b"), ("sort=count", "ba"),
     ("sort=last", "ab"), ("q=%25", "")],
)  # fmt: skip
def test_each_choice_finds_its_own(viewer, query, keys):
    fail(queue_name="mail", release="r1")
    send = {"task_path": "app.tasks.send", "exception_class": "smtp.Refused", "release": "r2"}
    for _ in range(2):
        fail("bbbbbbbbbbbb app/send.py:send", ago=timedelta(minutes=90), **send)
    assert [key[0] for key, *_ in shown(viewer, f"?{query}")] == list(keys)


def test_a_time_may_be_a_moment(viewer):
    fail(ago=timedelta(days=3))
    at = timezone.now() - timedelta(days=3, minutes=5)
    assert shown(viewer, f"?since={at:%Y-%m-%dT%H:%M}") != []
    assert shown(viewer, f"?since={at:%Y-%m-%dT%H:%M}&until={at + timedelta(minutes=2):%Y-%m-%dT%H:%M}") == []


@pytest.mark.parametrize("query", ["since=soon", "until=%00", "sort=task", "since=1h&until=2h", "since=1h&until=1h"])
def test_a_choice_that_cannot_be_read_is_a_400_that_says_why(viewer, query):
    page = viewer.get(f"{PAGE}?{query}")
    assert (page.status_code, "errornote" in page.text) == (400, True)


def test_it_says_how_many_tasks_are_failed_now_and_leads_to_them(viewer):
    tasks = [fail(), fail()]
    fail(status="READY")
    assert shown(viewer) == [("aaaaaaaaaaaa", "3", "2")]
    listed = viewer.get("/admin/tasks/task/?status=FAILED&failure=aaaaaaaaaaaa")
    assert sorted(int(row.id) for row in listed.context["rows"]) == [task.pk for task in tasks]


def test_beyond_the_tasks_that_are_looked_at_it_does_not_say_none(viewer, monkeypatch):
    monkeypatch.setattr("dashboard.failures.GROUPED", 1)
    monkeypatch.setattr("dashboard.views.failures.GROUPED", 1)
    fail(), fail(LOST)
    assert [failed for *_, failed in shown(viewer)] == ["1+", "?"]


def test_releases_have_a_column_when_there_are_some(viewer):
    fail()
    assert "Release</th>" not in viewer.get(PAGE).text
    fail(release="2026.11.3"), fail(release="2026.11.2")
    assert "2026.11.2, 2026.11.3" in flat(viewer.get(PAGE).text)


def test_released_attempts_and_completed_tasks_are_no_failures(viewer):
    Attempt.objects.create(task=rows.ready(), number=1, worker_id="w", outcome="released")
    assert "No attempt failed in this time." in viewer.get(PAGE).text


def test_only_so_many_are_shown_and_the_rest_is_counted(viewer, monkeypatch):
    monkeypatch.setattr("dashboard.failures.SHOWN", 2)
    for number in range(5):
        fail(f"{number:012x} place")
    page = viewer.get(PAGE).text
    assert len(shown(viewer)) == 2
    assert "3 more kinds of failure are not shown" in flat(page)


def test_texts_from_outside_are_shown_as_text(viewer):
    hostile = "<script>alert(1)</script>"
    fail("aaaaaaaaaaaa <b>place</b>", task_path=hostile, exception_class="a.<i>E", message=hostile, release="<u>r</u>")
    for address in (PAGE, f"{PAGE}aaaaaaaaaaaa/"):
        page = viewer.get(address).text
        assert not re.search("<script>alert|<b>place|<i>E|<u>r", page)


class TestOneKind:
    def test_it_shows_the_latest_attempt_in_full_and_all_of_them(self, viewer):
        old, new = fail(ago=timedelta(days=40)), fail(release="r7")
        fail(LOST)
        page = viewer.get(f"{PAGE}aaaaaaaaaaaa/")
        assert f"order {new.pk}" in page.text.partition('id="failure-attempts"')[0]
        assert [row.task_id for row in page.context["rows"]] == [str(new.pk), str(old.pk)]
        assert "r7" in page.text

    def test_its_attempts_come_a_page_at_a_time(self, viewer):
        made = [fail().pk for _ in range(60)]
        found, query = [], ""
        while query is not None:
            page = viewer.get(f"{PAGE}aaaaaaaaaaaa/{query}")
            found += [int(row.task_id) for row in page.context["rows"]]
            query = page.context["links"]["older"] or None
        assert found == made[::-1]

    def test_one_that_was_quiet_for_a_week_is_still_there(self, viewer):
        fail(ago=timedelta(days=30))
        page = viewer.get(f"{PAGE}aaaaaaaaaaaa/")
        assert (page.status_code, page.context["row"].number, page.context["row"].failed) == (200, "0", "1")

    @pytest.mark.parametrize("key", ["cccccccccccc", "aaaaaaaaaaa", "aaaaaaaaaaaaa", "%00", "aaaaaaaaaaaa%20app"])
    def test_one_that_is_unknown_is_a_404(self, viewer, key):
        fail()
        assert viewer.get(f"{PAGE}{key}/").status_code == 404


class TestActions:
    def test_run_all_again_takes_the_failed_tasks_of_this_kind_alone(self):
        mine, other = [fail(), fail()], fail("bbbbbbbbbbbb app/other.py:f")
        operator = client_of("Operators")
        [query] = re.findall(r'value="(status=FAILED&amp;failure=aaaaaaaaaaaa)"', operator.get(PAGE).text)
        form = {"filter": query.replace("&amp;", "&"), "next": PAGE}
        preview = operator.post("/admin/tasks/task/all/requeue/", form)
        assert "2 tasks" in preview.text
        sent = dict(re.findall(r'name="(token|upto)" value="([^"]*)"', preview.text))
        operator.post("/admin/tasks/task/all/requeue/", {**form, **sent, "confirmed": "1", "reason": "card works"})
        run = BulkRun.objects.get()
        assert sorted(failures_of(run)) == [task.pk for task in mine]
        assert other.pk not in failures_of(run)

    def test_quarantine_is_for_the_function(self):
        fail()
        page = client_of("Operators").get(PAGE).text
        assert re.search(r'value="task=app.tasks.charge"\s+data-dialog\s+data-action="quarantine"', page)

    def test_what_is_acknowledged_says_so_and_leaves_the_number_in_the_menu(self):
        fail(), fail("bbbbbbbbbbbb app/other.py:f")
        operator = client_of("Operators")
        assert "Failures (2)" in operator.get(PAGE).text
        lines = inbox.gather(Snapshot(), person("Operators").has_perm)
        line = lines.find("failed:aaaaaaaaaaaa")
        assert f'name="line" value="{line.name}"' in operator.get(PAGE).text
        inbox.acknowledge(line, Who("anna", "page"), reason="known", lasts=None, size=1)
        page = operator.get(PAGE).text
        assert "Failures (1)" in page
        assert "acknowledged by anna" in page
        fail()
        assert "acknowledged by anna" not in operator.get(PAGE).text, "it has grown"

    def test_a_viewer_sees_what_the_buttons_need(self, viewer):
        fail()
        for address in (PAGE, f"{PAGE}aaaaaaaaaaaa/"):
            page = viewer.get(address).text
            for action, right in RIGHTS.items():
                assert re.search(rf'data-action="{action}"[^>]*disabled aria-describedby="right-{action}"', page)
                assert right in page

    def test_the_command_of_a_line_is_its_button(self, viewer):
        fail()
        assert "python manage.py requeue_tasks --status FAILED --failure aaaaaaaaaaaa" in viewer.get(PAGE).text


def failures_of(run: BulkRun) -> list[int]:
    """The ids of the tasks that the run is about."""
    return list(TaskFilter.from_query(run.filter).queryset().values_list("pk", flat=True))


def test_who_may_not_see_tasks_is_told_the_right():
    page = client_of().get(PAGE)
    assert (page.status_code, "tasks.view_task" in page.text) == (403, True)


def test_only_its_part_refreshes_itself(viewer):
    fail()
    page = viewer.get(PAGE)
    assert 'data-live="15"' in page.text
    part = viewer.get(PAGE, headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert 'id="failure-kinds"' in part


@pytest.mark.django_db(transaction=True)
def test_a_count_that_takes_too_long_is_left_out_and_said(viewer):
    fail()
    with session("migration") as other:
        other.execute("LOCK TABLE tasks_attempt IN ACCESS EXCLUSIVE MODE")
        page = viewer.get(PAGE)
    assert "could not be counted within two seconds" in page.text


def test_the_queries_do_not_grow_with_the_kinds(viewer):
    counts = []
    for kinds_of_it in (range(1), range(1, 20)):
        for number in kinds_of_it:
            fail(f"{number:012x} place")
        with CaptureQueriesContext(connection) as captured:
            viewer.get(PAGE)
        counts.append(len(captured))
    assert counts[0] == counts[1]
