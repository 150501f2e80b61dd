"""`check_tasks` finds claims and tasks that the database has lost, and nothing else."""

import io
import signal
import sys
from datetime import timedelta

import pytest
from django.utils import timezone

from tasks.commands import operator
from tasks.management.commands import check_tasks
from tasks.models import RefusedWrite, Task
from tasks.operations import archive
from tests.commands import run
from tests.tasks import rows

pytestmark = pytest.mark.django_db
OLD = timezone.now() - timedelta(days=8)


def refused(task_id, held, found):
    """Record the refused report of a worker that held version `held` when the row had version `found`."""
    values = {"task_id": task_id, "worker_id": "w", "expected_version": held, "actual_version": found}
    return RefusedWrite.objects.create(**values, intent="complete")


def archived():
    """The id of an archived task, and its time."""
    task = rows.completed(created_at=OLD, finished_at=OLD)
    archive.archive_tasks(timedelta(days=7), operator())
    return task.pk, task.created_at


def check(*argv, lines=(), monkeypatch=None):
    """The command; with `lines`, these are its list."""
    if not lines:
        return run("check_tasks", "--json", *argv)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    return run("check_tasks", "--json", "--enqueued", "-", *argv)


def test_nothing_is_missing_from_an_empty_queue():
    assert check().data == {"claims": [], "enqueued": None, "missing": []}
    outcome = run("check_tasks")
    assert (outcome.status, outcome.stdout) == (0, "Claims that no row has: 0.\n")


class TestClaims:
    def test_a_row_older_than_a_claim_of_it_has_been_lost(self):
        found = refused(1, held=4, found=2)
        outcome = check()
        assert outcome.status == 3
        claim = {"id": 1, "worker": "w", "at": found.at.isoformat(), "held": 4, "found": 2}
        assert outcome.data["claims"] == [claim]
        assert "Task 1: worker w held version 4, but its row had version 2." in outcome.stderr
        assert outcome.stderr.endswith("No row has 1 claim: commits were lost, or rows deleted.\n")

    def test_a_row_that_was_gone_too(self):
        refused(1, held=2, found=None)
        outcome = check()
        assert (outcome.status, [claim["found"] for claim in outcome.data["claims"]]) == (3, [None])
        assert "held version 2, but its row was gone." in outcome.stderr

    def test_a_late_write_is_no_loss(self):
        refused(1, held=2, found=3)
        refused(2, held=2, found=2)
        refused(archived()[0], held=2, found=None)
        assert check().status == 0

    def test_only_claims_of_so_long_ago(self):
        RefusedWrite.objects.filter(pk=refused(1, held=2, found=1).pk).update(at=timezone.now() - timedelta(hours=2))
        assert check("--since", "1h").status == 0
        assert check("--since", "3h").status == 3


class TestEnqueued:
    def test_tasks_of_the_queue_and_of_the_archive_are_there(self, monkeypatch):
        (old, old_at), new = archived(), rows.ready()
        lines = [str(new.pk), "", f"{new.pk} {new.created_at.isoformat()}", f"{old},{old_at.isoformat()}", f" {old} "]
        outcome = check(lines=lines, monkeypatch=monkeypatch)
        assert (outcome.status, outcome.data["enqueued"], outcome.data["missing"]) == (0, 4, [])

    def test_a_lost_task_is_missing_although_another_one_got_its_id(self, monkeypatch):
        (old, _), new = archived(), rows.ready()
        at = (new.created_at - timedelta(microseconds=1)).isoformat()
        lines = [f"{new.pk} {at}", f"{old} {at}", f"{new.pk + 1}"]
        outcome = check(lines=lines, monkeypatch=monkeypatch)
        assert outcome.status == 3
        assert outcome.data["enqueued"] == 3
        assert outcome.data["missing"] == [
            {"id": new.pk, "enqueued_at": at},
            {"id": old, "enqueued_at": at},
            {"id": new.pk + 1, "enqueued_at": None},
        ]
        assert f"Task {new.pk + 1} is missing: lost, or pruned." in outcome.stderr
        assert "Of the list 3 tasks cannot be found: enqueue again what was not pruned." in outcome.stderr

    def test_a_list_of_many_chunks_is_read_to_its_end(self, monkeypatch, tmp_path):
        monkeypatch.setattr(check_tasks, "CHUNK", 2)
        known = [rows.ready().pk for _ in range(5)]
        path = tmp_path / "ids.txt"
        path.write_text("\n".join(map(str, [*known, 10**9])))
        outcome = check("--enqueued", path)
        assert (outcome.data["enqueued"], [task["id"] for task in outcome.data["missing"]]) == (6, [10**9])

    @pytest.mark.parametrize("line", ["x", "0", "1 yesterday", "1 2 3", f"{2**63}"])
    def test_a_line_that_names_no_task_is_refused_with_its_number(self, monkeypatch, line):
        outcome = check(lines=["7", line], monkeypatch=monkeypatch)
        assert outcome.status == 2
        assert "Line 2 of the list: " in outcome.stderr

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path):
        (tmp_path / "binary").write_bytes(b"\xff\xfe\n")
        for path in (tmp_path / "none", tmp_path, tmp_path / "binary"):
            outcome = run("check_tasks", "--enqueued", path)
            assert outcome.status == 1
            assert f"'{path}' cannot be read: " in outcome.stderr
            assert "Traceback" not in outcome.stderr

    def test_so_is_an_input_that_is_no_text(self, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"7\n\xff\n"), encoding="utf-8"))
        outcome = run("check_tasks", "--enqueued", "-")
        assert outcome.status == 1
        assert "'-' cannot be read: " in outcome.stderr

    def test_a_signal_ends_it_between_two_chunks(self, monkeypatch):
        monkeypatch.setattr(check_tasks, "CHUNK", 1)
        asked = []

        def missing(_, tasks):
            asked.append(tasks)
            signal.raise_signal(signal.SIGTERM)
            return []

        monkeypatch.setattr(check_tasks.loss, "missing", missing)
        outcome = check(lines=["1", "2"], monkeypatch=monkeypatch)
        assert (outcome.status, len(asked)) == (143, 1)

    def test_it_changes_nothing(self, monkeypatch):
        task = rows.ready()
        check(lines=[str(task.pk)], monkeypatch=monkeypatch)
        assert Task.objects.get() == task
