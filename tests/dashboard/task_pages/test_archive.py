"""Archived tasks are found by pages, show_task, palette and API, and are run again as new ones."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from dashboard.task_pages import archive as page_of_archive
from tasks import operations
from tasks.framework.context import MOST_LINES
from tasks.models import ArchivedTask, Attempt, AttemptLog, Intervention, Task
from tasks.support.audit import Who
from tests.commands import run
from tests.dashboard.api.callers import Caller
from tests.people import client_of
from tests.tasks import handlers, rows

pytestmark = pytest.mark.django_db
LIST = "/admin/tasks/task/archive/"
TOKEN = re.compile(r'name="token" value="([^"]+)"')
ANNA = Who("anna", "command")
OLD = timezone.now() - timedelta(days=8)
PATH = handlers.log_in.module_path


def archived(state=rows.failed, **columns):
    """A task in the archive; it finished at OLD unless the columns say otherwise."""
    task = state(**{"task_path": PATH, "created_at": OLD, "finished_at": OLD, **columns})
    if task.status == "FAILED":
        Attempt.objects.create(
            task=task, number=5, worker_id="w", outcome="failed", exception_class="shop.CardDeclined", finished_at=OLD,
            traceback="Traceback (most recent call last):\nshop.CardDeclined: no funds",
        )  # fmt: skip
        AttemptLog.objects.create(task_id=task.pk, number=5, at=OLD, level="INFO", message="asked the bank")
    operations.archive_tasks(timedelta(days=7), ANNA)
    return task


@pytest.fixture
def viewer():
    return client_of("Viewers")


@pytest.fixture
def operator():
    return client_of("Operators")


class TestDetail:
    def test_it_shows_the_task_as_it_was_and_no_secret(self, viewer):
        task = archived(args=["anna", "swordfish"])
        page = viewer.get(f"/admin/tasks/task/{task.pk}/")
        assert page.status_code == 200
        assert 'id="archived"' in page.text
        for text in ("CardDeclined: no funds", "asked the bank", "anna", f"enqueue_task --archived {task.pk}"):
            assert text in page.text
        assert "swordfish" not in page.text
        assert f"requeue_tasks {task.pk}" not in page.text
        assert re.search(r'data-action="run_again"[^>]*disabled', page.text)

    def test_a_living_task_is_not_archived(self, operator):
        page = operator.get(f"/admin/tasks/task/{rows.failed().pk}/")
        assert 'id="archived"' not in page.text
        assert 'data-action="run_again"' not in page.text

    def test_show_task_and_the_api_find_it(self):
        task = archived()
        shown = run("show_task", "--json", task.pk).data
        assert (shown["tasks"][0]["status"], bool(shown["archived_at"])) == ("FAILED", True)
        assert (shown["attempts"][0]["exception_class"], shown["log"][0]["message"]) == (
            "shop.CardDeclined", "asked the bank",
        )  # fmt: skip
        assert shown["command"].endswith(f"enqueue_task --archived {task.pk}")
        assert "archived" in run("show_task", task.pk).stdout
        found = Caller("Viewers").get(f"/tasks/{task.pk}")
        assert (found["archived"], found["attempts"][0]["exception"]) == (True, "shop.CardDeclined")
        assert Caller("Viewers").get(f"/tasks/{rows.ready().pk}")["archived"] is False

    def test_the_palette_finds_its_number(self, viewer):
        task = archived()
        found = viewer.get("/admin/ops/palette/", {"q": f"#{task.pk}"}).json()
        assert f"/admin/tasks/task/{task.pk}/" in str(found)

    def test_a_verb_says_that_it_is_archived(self):
        task = archived()
        result = operations.requeue([task.pk, 10**9], ANNA)
        assert {id: refusal.code for id, refusal in result.refused.items()} == {task.pk: "archived", 10**9: "missing"}

    def test_the_latest_lines_alone_are_shown(self):
        task = rows.failed(created_at=OLD, finished_at=OLD)
        AttemptLog.objects.bulk_create(
            AttemptLog(task_id=task.pk, number=1, at=OLD, level="INFO", message=f"line {number}")
            for number in range(MOST_LINES + 1)
        )
        operations.archive_tasks(timedelta(days=7), ANNA)
        lines = ArchivedTask.find(task.pk).lines(MOST_LINES)
        assert [lines[0].message, lines[-1].message] == ["line 1", f"line {MOST_LINES}"]


class TestList:
    def test_it_is_found_by_id_task_key_status_and_time(self, viewer):
        failed = archived(ordering_key="customer-7")
        done = archived(rows.completed, task_path=rows.NOTHING, unique_key="order-9", unique_while="a")
        early = archived(rows.cancelled, finished_at=OLD - timedelta(days=40))

        def found(**query):
            answer = viewer.get(LIST, query)
            assert answer.status_code == 200
            return [int(number) for number in re.findall(r'id="archived-(\d+)"', answer.text)]

        assert found() == [done.pk, failed.pk, early.pk]
        assert found(id=f"#{early.pk}") == [early.pk]
        assert found(task=rows.NOTHING) == [done.pk]
        assert found(key="customer-7") == [failed.pk]
        assert found(key="order-9") == [done.pk]
        assert found(status="cancelled") == [early.pk]
        assert found(until="30d") == [early.pk]
        assert found(since="30d", task=PATH) == [failed.pk]

    def test_pages_follow_each_other_also_within_one_moment(self, viewer, monkeypatch):
        monkeypatch.setattr(page_of_archive, "PAGE", 3)
        at = [OLD] * 5 + [OLD - timedelta(days=40)] * 2
        tasks = [archived(rows.completed, finished_at=each).pk for each in at]
        seen, url = [], LIST
        while url:
            page = viewer.get(url).text
            seen += [int(number) for number in re.findall(r'id="archived-(\d+)"', page)]
            link = re.search(r'href="(\?[^"]+)" rel="next"', page)
            url = link and LIST + link[1].replace("&amp;", "&")
        assert seen == [*reversed(tasks[:5]), *reversed(tasks[5:])]

    @pytest.mark.parametrize("query", ["id=x", "status=READY+now", "since=soon", "before=now", "before=2026-01-01/1"])
    def test_a_search_that_cannot_be_read_is_refused(self, viewer, query):
        page = viewer.get(f"{LIST}?{query}")
        assert (page.status_code, 'role="alert"' in page.text) == (400, True)

    def test_a_search_that_takes_too_long_says_so(self, viewer, monkeypatch):
        class Slow(page_of_archive.LastError):
            template = "pg_sleep(5)::text"

        monkeypatch.setattr(page_of_archive, "LastError", Slow)
        monkeypatch.setattr(page_of_archive, "SEARCH_SECONDS", 0.05)
        archived()
        assert "The search ran out of time" in viewer.get(LIST).text

    def test_the_list_of_tasks_leads_here_with_its_conditions(self, viewer):
        page = viewer.get("/admin/tasks/task/", {"id": 4711, "task": PATH, "status": "FAILED", "key": "k"})
        url = f"{LIST}?id=4711&amp;task={PATH}&amp;status=FAILED&amp;key=k"
        assert page.text.count(f'href="{url}"') == 2  # the tab, and the line that nothing was found


class TestRunningAgain:
    def press(self, client, task, **fields):
        return client.post(f"/admin/tasks/task/{task.pk}/again/", fields)

    def test_a_new_task_has_the_same_call_and_the_audit_names_both(self, operator):
        task = archived(
            rows.completed, args=["anna"], kwargs={"rowlock:encrypted": "gAAA"}, queue_name="mail", priority=7,
            ordering_key="k",
        )  # fmt: skip
        asked = self.press(operator, task)
        assert (asked.status_code, Task.objects.exists()) == (200, False)
        fields = {"confirmed": "1", "token": TOKEN.search(asked.text)[1], "reason": "lost"}
        for _ in range(2):  # a double click
            answer = self.press(operator, task, **fields)
            made = Task.objects.get()
            assert answer.headers["Location"] == f"/admin/tasks/task/{made.pk}/"
        same = ("task_path", "args", "kwargs", "queue_name", "priority", "ordering_key")
        assert [getattr(made, name) for name in same] == [getattr(task, name) for name in same]
        assert (made.status, made.attempt, made.pk != task.pk) == ("READY", 0, True)
        entries = Intervention.objects.exclude(action__startswith="archive").values_list("target", "action", "reason")
        assert set(entries) == {
            (f"task:{made.pk}", f"enqueue archived={task.pk}", "lost"),
            (f"task:{task.pk}", f"run_again new={made.pk}", "lost"),
        }
        assert ArchivedTask.find(task.pk)

    def test_a_viewer_may_not(self, viewer):
        assert self.press(viewer, archived(), confirmed="1").status_code == 403
        assert not Task.objects.exists()

    def test_a_unique_key_that_another_task_has_refuses_it(self, operator):
        task = archived(unique_key="order-9", unique_while="a")
        holder = rows.ready(unique_key="order-9", unique_while="a")
        token = TOKEN.search(self.press(operator, task).text)[1]
        answer = self.press(operator, task, confirmed="1", token=token)
        assert (answer.status_code, f"Task #{holder.pk} has its unique key order-9" in answer.text) == (400, True)
        assert Task.objects.get() == holder

    def test_a_form_without_its_token_does_nothing(self, operator):
        assert self.press(operator, archived(), confirmed="1").status_code == 400
        assert not Task.objects.exists()

    def test_the_command_does_the_same(self):
        task = archived()
        assert run("enqueue_task", "--archived", task.pk, "--dry-run").status == 0
        assert not Task.objects.exists()
        made = run("enqueue_task", "--json", "--archived", task.pk).data
        assert made == {"ids": [Task.objects.get().pk], "count": 1, "duplicates": 0}
        assert run("enqueue_task", "--archived", 10**9).status == 1
        assert run("enqueue_task").status == 2
        assert run("enqueue_task", PATH, "--archived", task.pk).status == 2

    def test_what_pages_enqueue_under_rights_is_refused(self):
        task = archived(task_path="tasks.tasks.run_bulk_action")
        assert run("enqueue_task", "--archived", task.pk).status == 1
        assert not Task.objects.exists()


def test_a_month_ends_in_utc(viewer):
    at = datetime(2025, 12, 31, 23, 30, tzinfo=UTC)
    task = archived(rows.completed, finished_at=at, created_at=at)
    with_offset = viewer.get(LIST, {"since": "2026-01-01T00:00+01:00", "until": "2026-01-01T00:00Z"})
    assert f'id="archived-{task.pk}"' in with_offset.text
