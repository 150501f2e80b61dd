"""Many tasks at once: chunk by chunk, waiting for nobody, changing nothing that moved on since it was seen."""

import pytest
from django.db import connection

from tasks import operations
from tasks.models import Intervention, Task
from tasks.operations import Settings, verb
from tasks.operations.filters import TaskFilter
from tasks.support.audit import Who
from tests.commands import run
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db
ANNA = Who("anna", "page")


def codes(result):
    return {task_id: refusal.code for task_id, refusal in result.refused.items()}


class TestVersions:
    """The version that the operator saw decides, whatever has become of the row."""

    @pytest.mark.parametrize("act", [operations.requeue, operations.cancel])
    def test_f18_a_row_that_moved_on_is_refused_with_what_it_is_now(self, act):
        task = rows.failed(version=6)
        result = act([task.pk], ANNA, versions={task.pk: 5})
        refusal = result.refused[task.pk]
        assert (result.done, refusal.code, refusal.status, refusal.version) == ([], "changed", "FAILED", 6)
        assert "version 5" in refusal.sentence
        assert "FAILED at version 6" in refusal.sentence
        assert Task.objects.get().version == 6

    def test_an_edit_too(self):
        task = rows.ready(version=2)
        assert codes(operations.edit([task.pk], ANNA, Settings(priority=1), versions={task.pk: 1})) == {
            task.pk: "changed"
        }

    def test_the_version_seen_is_acted_on(self):
        task = rows.failed(version=6)
        assert operations.requeue([task.pk], ANNA, versions={task.pk: 6}).done == [task.pk]

    def test_a_second_click_changes_nothing(self):
        task = rows.failed(version=6)
        results = [operations.requeue([task.pk], ANNA, versions={task.pk: 6}) for _ in range(2)]
        assert [codes(result) for result in results] == [{}, {task.pk: "changed"}]
        assert Intervention.objects.count() == 1

    def test_tasks_whose_version_was_not_seen_are_not_checked(self):
        seen, unseen = rows.failed(version=6), rows.failed(version=6)
        result = operations.requeue([seen.pk, unseen.pk], ANNA, versions={seen.pk: 5})
        assert (result.done, codes(result)) == ([unseen.pk], {seen.pk: "changed"})


@pytest.mark.parametrize("act", [operations.requeue, operations.cancel, operations.quarantine, operations.Recover.act])
@pytest.mark.parametrize("selection", [[], TaskFilter()], ids=["no ids", "no conditions"])
def test_nothing_selected_is_not_everything(act, selection):
    task = rows.failed()
    assert act(selection, ANNA) == operations.Result()
    assert Task.objects.values_list("status", "version").get() == ("FAILED", task.version)
    assert Intervention.objects.count() == 0


@pytest.mark.django_db(transaction=True)
class TestLockedRows:
    """Rows that another session holds are refused; a lock_timeout of 2 s would turn any wait into an error."""

    @pytest.mark.parametrize("command", ["requeue_tasks", "cancel_tasks"])
    @pytest.mark.parametrize("clause", ["FOR NO KEY UPDATE", "FOR UPDATE", "FOR SHARE"])
    def test_a_held_row_is_refused_and_the_others_go_on(self, command, clause):
        held, free = rows.failed(), rows.failed()
        with session() as other:
            other.execute(f"SELECT FROM tasks_task WHERE id = %s {clause}", [held.pk])
            outcome = run(command, held.pk, free.pk, "--json")
            holder = f"locked by pid {other.info.backend_pid} (rowlock:test)"
        [refusal] = outcome.data["refused"]
        assert (outcome.status, outcome.data["ids"]) == (1, [free.pk])
        assert (refusal["reason"], refusal["status"], refusal["version"]) == ("locked", "FAILED", held.version)
        assert holder in refusal["message"]
        assert Task.objects.get(pk=held.pk).version == held.version

    def test_a_row_that_a_filter_selected_is_told_as_locked_too(self):
        held = rows.failed()
        with session() as other:
            other.execute("SELECT FROM tasks_task FOR UPDATE")
            outcome = run("requeue_tasks", "--status", "FAILED", "--json")
        assert [(refusal["id"], refusal["reason"]) for refusal in outcome.data["refused"]] == [(held.pk, "locked")]

    def test_a_foreign_key_that_refers_to_the_row_is_no_hindrance(self):
        task = rows.failed()
        with session() as other:
            other.execute("SELECT FROM tasks_task FOR KEY SHARE")
            assert operations.requeue([task.pk], ANNA).done == [task.pk]

    def test_a_table_held_whole_is_not_waited_for_for_long(self):
        task = rows.failed()
        with session() as other:
            other.execute("LOCK TABLE tasks_intervention IN ACCESS EXCLUSIVE MODE")
            outcome = run("requeue_tasks", task.pk, "--json")
        assert outcome.status == 1
        assert "nothing waits longer than 2 s" in outcome.data["error"]
        assert Task.objects.get().status == "FAILED"


class TestWhatWasSelectedAndMovedOn:
    """The conditions must still hold under the lock, as in every double-checked pattern."""

    @pytest.fixture
    def moved(self, monkeypatch):
        """A row that leaves the queue between the selection and its lock."""
        task = rows.failed(queue_name="a")
        selected_ids = TaskFilter.selected_ids

        def select_then_move(chosen):
            ids = selected_ids(chosen)
            Task.objects.update(queue_name="b")
            return ids

        monkeypatch.setattr(TaskFilter, "selected_ids", select_then_move)
        return task

    def test_by_conditions_it_is_passed_over(self, moved):
        result = operations.requeue(TaskFilter(statuses=("FAILED",), queue_names=("a",)), ANNA)
        assert (result.done, result.refused, Task.objects.get().status) == ([], {}, "FAILED")

    def test_by_id_it_is_refused(self, moved):
        result = operations.requeue(TaskFilter(ids=(moved.pk,), queue_names=("a",)), ANNA)
        assert codes(result) == {moved.pk: "unmatched"}


class TestChunks:
    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch):
        monkeypatch.setattr(verb, "CHUNK", 10)

    def test_all_that_match_are_reached(self):
        ids = rows.many(35, status="FAILED", attempt=1, finished_at="2026-01-01T00:00:00Z")
        seen = []
        result = operations.requeue(
            TaskFilter(statuses=("FAILED",)), ANNA, progress=lambda *numbers: seen.append(numbers) or True
        )
        assert (sorted(result.done), Task.objects.ready().count()) == (ids, 35)
        assert seen == [(10, 35), (20, 35), (30, 35), (35, 35)]
        assert Intervention.objects.values("target").distinct().count() == 35

    def test_the_caller_can_stop_between_two_chunks(self):
        ids = rows.many(35, status="FAILED", attempt=1, finished_at="2026-01-01T00:00:00Z")
        result = operations.requeue(ids, ANNA, progress=lambda done, total: done < 20)
        assert (len(result.done), result.unreached) == (20, 15)
        assert Task.objects.failed().count() == 15

    @pytest.mark.django_db(transaction=True)
    def test_each_chunk_is_committed_by_itself(self):
        ids = rows.many(35, status="FAILED", attempt=1, finished_at="2026-01-01T00:00:00Z")
        seen = []

        def look(done, total):
            with session(autocommit=True) as other:
                seen.append(other.execute("SELECT count(*) FROM tasks_task WHERE status = 'READY'").fetchone()[0])
                seen.append(other.execute(HELD, [connection.connection.info.backend_pid]).fetchone()[0])
            return True

        operations.requeue(ids, ANNA, progress=look)
        assert seen == [10, 0, 20, 0, 30, 0, 35, 0]


HELD = "SELECT count(*) FROM pg_locks WHERE pid = %s AND locktype = 'transactionid'"
