"""`list_tasks` and `show_task`: rows with their verdicts, as a table, CSV and JSON; and one task until it ends."""

import csv
import io

import pytest
from django.db.models import F
from django.utils import timezone

from tasks.models import Attempt, AttemptLog, Progress, Queue, Task
from tests.commands import run, start
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
KEYS = ["id", "task_path", "queue", "status", "version", "verdict", "attempt", "max_attempts", "run_after", "worker"]


def logged(task, message):
    AttemptLog.objects.create(task_id=task.pk, number=1, at=timezone.now(), level="INFO", message=message)


def listed(*argv):
    outcome = run("list_tasks", *argv, "--json")
    assert outcome.status == 0, outcome.stderr
    return [row["id"] for row in outcome.data["tasks"]]


class TestRows:
    def test_each_has_the_keys_of_the_contract_and_the_verdict_of_the_page(self):
        Queue.objects.create(name="mail", paused=True)
        task = rows.ready(queue_name="mail")
        dead = rows.processing(rows.dead_worker())
        taken, waiting = run("list_tasks", "--json").data["tasks"]
        assert list(waiting) == KEYS
        assert (waiting["id"], waiting["queue"], waiting["verdict"], waiting["worker"]) == (
            task.pk,
            "mail",
            "paused",
            None,
        )
        assert (taken["id"], taken["verdict"], taken["worker"]) == (dead.pk, "worker_dead", "w-dead")

    def test_the_newest_come_first_or_the_oldest(self):
        ids = rows.many(5)
        assert listed() == ids[::-1]
        assert listed("--sort", "id") == listed("--sort=-id")[::-1] == ids
        assert listed("--limit", 2) == ids[:2:-1]

    def test_an_order_without_an_index_is_refused_with_the_list(self):
        outcome = run("list_tasks", "--sort", "run_after")
        assert (outcome.status, "choose one of id, -id" in outcome.stderr) == (2, True)

    def test_the_filters_are_those_of_requeue_tasks(self):
        failed, ready, _ = rows.failed(queue_name="a"), rows.ready(queue_name="b", args=["anna"]), rows.cancelled()
        Attempt.objects.create(task=failed, number=5, worker_id="w", outcome="failed", exception_class="CardDeclined")
        assert listed("--status", "failed") == listed("--queue", "a") == listed("--error", "declined") == [failed.pk]
        assert listed("--text", "anna") == listed("--due", "now") == listed(ready.pk) == [ready.pk], (
            "due are those that wait"
        )
        assert listed("--older-than", "1h") == []

    def test_a_cut_list_says_so(self):
        rows.many(3)
        assert run("list_tasks", "--limit", 3, "--json").data["is_complete"]
        assert not run("list_tasks", "--limit", 2, "--json").data["is_complete"]
        assert "More tasks match than these 2" in run("list_tasks", "--limit", 2).stdout
        for_a_file = run("list_tasks", "--limit", 2, "--csv")
        assert ["More tasks" in text for text in (for_a_file.stdout, for_a_file.stderr)] == [False, True]

    def test_a_search_that_took_too_long_says_how_far_it_came(self, monkeypatch):
        monkeypatch.setattr("tasks.management.commands.list_tasks.SEARCH_SECONDS", 0.0)
        task = rows.ready()
        outcome = run("list_tasks", "--json")
        assert (outcome.data["tasks"], outcome.data["is_complete"]) == ([], False)
        assert outcome.data["searched_to_id"] == task.pk + 1
        assert "ended at id" in outcome.stderr

    def test_a_locked_row_and_many_are_judged_in_few_statements(self, django_assert_max_num_queries):
        ids = rows.many(700)
        with session() as other:
            other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [ids[0]])
            with django_assert_max_num_queries(60):
                found = run("list_tasks", "--limit", 1000, "--json", "--sort", "id").data["tasks"]
        assert (len(found), found[0]["id"]) == (700, ids[0])

    def test_the_table_has_a_line_for_each(self):
        task = rows.failed()
        heading, line, *_ = run("list_tasks").stdout.splitlines()
        assert heading.split() == ["ID", "TASK", "QUEUE", "STATUS", "ATTEMPT", "AGE", "VERDICT"]
        assert line.split()[:4] == [str(task.pk), "nothing", "default", "FAILED"]
        assert line.endswith("Failed after 5 attempts.")
        assert run("list_tasks", "--status", "READY").stdout == "No task was found.\n"


class TestCsv:
    def test_it_is_read_back(self):
        task = rows.ready(queue_name='a "b", c')
        [row] = csv.DictReader(io.StringIO(run("list_tasks", "--csv").stdout))
        assert (list(row), row["id"], row["queue"]) == (KEYS, str(task.pk), 'a "b", c')

    @pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1+1"])
    def test_no_cell_is_a_formula(self, name):
        rows.ready(queue_name=name)
        [row] = csv.DictReader(io.StringIO(run("list_tasks", "--csv").stdout))
        assert row["queue"] == f"'{name}"

    def test_csv_and_json_are_two_things(self):
        assert run("list_tasks", "--csv", "--json").status == 2


class TestOne:
    def test_its_row_verdict_command_and_attempts(self):
        task = rows.failed(kwargs={"order": 7, "password": "hunter2"})
        when = timezone.now()
        told = {"exception_class": "shop.CardDeclined", "traceback": "Traceback:\nshop.CardDeclined: no"}
        Attempt.objects.create(
            task=task, number=5, worker_id="w7f", outcome="failed", started_at=when, finished_at=when, **told
        )
        data = run("show_task", task.pk, "--json").data
        assert list(data["tasks"][0]) == KEYS
        assert data["sentence"] == "Failed after 5 attempts: shop.CardDeclined"
        assert data["command"] == f"python manage.py requeue_tasks {task.pk}"
        assert [(each["number"], each["worker_id"]) for each in data["attempts"]] == [(5, "w7f")]
        assert data["kwargs"] == {"order": 7, "password": "[redacted]"}
        text = run("show_task", task.pk).stdout
        assert f"$ python manage.py requeue_tasks {task.pk}" in text
        assert "shop.CardDeclined: no" in text
        assert "hunter2" not in text

    def test_one_that_is_not_there(self):
        outcome = run("show_task", 4711, "--json")
        assert (outcome.status, "was pruned" in outcome.data["error"]) == (1, True)
        assert run("show_task", "x").status == 2

    def test_it_is_followed_to_its_end(self):
        task = rows.ready()
        with start("show_task", task.pk, "--follow") as process:
            assert "READY v1" in process.stdout.readline()
            Queue.objects.create(name="default", paused=True)
            assert "was paused" in process.stdout.readline()
            Task.objects.filter(pk=task.pk).update(
                status="COMPLETED", finished_at=timezone.now(), attempt=1, version=F("version") + 2
            )
            rest, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert rest.startswith(f"#{task.pk}: Completed by")

    def test_its_progress_and_its_log(self):
        task = rows.failed(attempt=2)
        data = run("show_task", task.pk, "--json").data
        assert (data["progress"], data["log"]) == (None, [])
        row = Progress.objects.create(
            task_id=task.pk, attempt=2, fraction=0.45, message="row 9", state={"token": "t-1"}
        )
        logged(task, "began\nand \x1b[2Jwent on")
        data = run("show_task", task.pk, "--json").data
        row.refresh_from_db()
        assert data["progress"] == {
            "fraction": 0.45, "message": "row 9", "updated_at": row.updated_at.isoformat(),
            "state": {"token": "[redacted]"},
        }  # fmt: skip
        [line] = data["log"]
        assert list(line) == ["number", "at", "level", "message"]
        assert (line["number"], line["level"], line["message"]) == (1, "INFO", "began\nand \x1b[2Jwent on")
        text = run("show_task", task.pk).stdout
        assert "progress  45 %: row 9" in text
        assert 'resumes   from the checkpoint {"token": "[redacted]"}' in text
        assert "INFO     began\n    and \\x1b[2Jwent on" in text

    def test_an_earlier_attempts_report_is_not_the_tasks_progress(self):
        task = rows.failed(attempt=2)
        Progress.objects.create(task_id=task.pk, attempt=1, fraction=0.45, message="row 9", state=9)
        told = run("show_task", task.pk, "--json").data["progress"]
        assert (told["fraction"], told["message"], told["state"]) == (None, "", 9)

    def test_its_progress_and_its_lines_are_followed_each_once(self):
        task = rows.processing("w7f")
        logged(task, "first")
        with start("show_task", task.pk, "--follow") as process:
            assert process.stdout.readline().endswith("INFO     first\n")
            assert "PROCESSING v2" in process.stdout.readline()
            Progress.objects.create(task_id=task.pk, attempt=1, fraction=0.45, message="row 9")
            assert process.stdout.readline().endswith("  45 %: row 9\n")
            logged(task, "second")
            assert process.stdout.readline().endswith("INFO     second\n")
            logged(task, "third")
            Task.objects.filter(pk=task.pk).update(
                status="COMPLETED", finished_at=timezone.now(), claimed_by=None, version=F("version") + 1
            )
            rest, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert (rest.count("first"), rest.count("second"), rest.count("third")) == (0, 0, 1)

    def test_followed_as_json_it_is_one_object_at_the_end(self):
        task = rows.cancelled()
        outcome = run("show_task", task.pk, "--follow", "--json")
        assert (outcome.status, outcome.data["tasks"][0]["status"]) == (0, "CANCELLED")

    def test_a_reader_that_leaves_ends_it(self):
        with start("show_task", rows.ready().pk, "--follow") as process:
            process.stdout.readline()
            process.stdout.close()
            Queue.objects.create(name="default", paused=True)
            assert process.wait(timeout=60) == 0
