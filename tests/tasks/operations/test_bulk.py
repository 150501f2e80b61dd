"""Bulk runs: everything that matched, once, in chunks, resumed where they left off, stopped on request."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections, transaction

from tasks.models import BulkRun, Intervention, SubmittedForm, Task
from tasks.operations import bulk, tokens, verb
from tasks.operations.bulk import highest_id
from tasks.operations.filters import TaskFilter
from tasks.testing import run_due
from tests.commands import run, run_process
from tests.sessions import session
from tests.tasks import handlers, rows
from tests.tasks.bulk import ANNA, ask
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


def carried_out(*arguments, **options) -> BulkRun:
    run = ask(*arguments, **options)
    bulk.carry_out(run.pk)
    run.refresh_from_db()
    return run


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(bulk, "CHUNK", 10)


def test_everything_that_matches_is_reached_and_nothing_else(small_chunks):
    ids = [rows.failed(queue_name="mail").pk for _ in range(25)]
    other = rows.failed(queue_name="payouts")
    run = carried_out("requeue", TaskFilter(statuses=("FAILED",), queue_names=("mail",)), reason="card works")
    assert (run.total, run.looked, run.done, run.refused) == (25, 25, 25, 0)
    assert run.finished_at is not None
    assert set(Task.objects.ready().filter(queue_name="mail").values_list("id", flat=True)) == set(ids)
    assert Task.objects.get(pk=other.pk).status == "FAILED"
    each = Intervention.objects.filter(action="requeue")
    assert (each.count(), {entry.reason for entry in each}, {entry.source for entry in each}) == (
        25,
        {"card works"},
        {"page"},
    )


def test_rows_that_came_after_the_preview_are_left_alone():
    seen = rows.failed()
    upto = highest_id()
    late = rows.failed()
    carried_out(upto=upto)
    assert [Task.objects.get(pk=task.pk).status for task in (seen, late)] == ["READY", "FAILED"]


def test_states_in_which_the_action_can_do_nothing_are_not_even_read():
    rows.completed(queue_name="mail"), rows.ready(queue_name="mail")
    rows.failed(queue_name="mail")
    run = carried_out("requeue", TaskFilter(queue_names=("mail",)))
    assert (run.looked, run.done) == (1, 1)


def test_a_filter_whose_states_the_action_cannot_change_reaches_nothing():
    rows.completed(), rows.failed()
    run = carried_out("requeue", TaskFilter(statuses=("COMPLETED",)))
    assert (run.looked, run.done) == (0, 0)
    assert Task.objects.failed().count() == 1


def test_what_is_refused_is_counted_with_examples():
    with rows.living_worker() as worker_id:
        task = rows.processing(worker_id)
        run = carried_out("requeue", TaskFilter(statuses=("PROCESSING",)))
    assert (run.done, run.refused, run.refusals["live"]["number"]) == (0, 1, 1)
    assert run.refusals["live"]["ids"] == [task.pk]
    assert "is alive" in run.refusals["live"]["sentence"]


def test_tasks_whose_secrets_match_are_left_alone():
    shown = rows.failed(kwargs={"note": "swordfish"})
    hidden = rows.failed(task_path=handlers.log_in.module_path, kwargs={"password": "swordfish"})
    run = carried_out("requeue", TaskFilter(text="swordfish"))
    assert run.done == 1
    assert [Task.objects.get(pk=task.pk).status for task in (shown, hidden)] == ["READY", "FAILED"]


def test_a_run_goes_on_where_its_dead_worker_left_off(small_chunks, monkeypatch):
    """The rows still match when they are done: only the cursor tells."""
    ids = rows.many(25, queue_name="mail")
    run = ask("edit", TaskFilter(queue_names=("mail",)), priority=5)
    note = bulk.note

    def die(run, slice_ids, result):
        note(run, slice_ids, result)
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk, "note", die)
    with pytest.raises(KeyboardInterrupt):
        bulk.carry_out(run.pk)
    run.refresh_from_db()
    assert (run.looked, run.cursor, run.finished_at) == (10, ids[9], None)
    monkeypatch.setattr(bulk, "note", note)
    bulk.carry_out(run.pk)
    run.refresh_from_db()
    assert (run.total, run.looked, run.done) == (25, 25, 25)
    assert Task.objects.filter(pk__in=ids, priority=5, version=2).count() == 25


def test_a_stopped_run_ends_after_the_chunk_in_hand(small_chunks, monkeypatch):
    for _ in range(25):
        rows.failed()
    run = ask()
    Task.objects.filter(pk=run.task_id).update(status="PROCESSING", claimed_by="w1", attempt=1)
    bulk.stop(run, ANNA, reason="wrong filter")
    bulk.carry_out(run.pk)
    run.refresh_from_db()
    assert (run.looked, run.total) == (10, 25)
    assert run.finished_at is not None
    assert Intervention.objects.filter(action=f"stop bulk run {run.pk}", reason="wrong filter").exists()


def test_a_run_that_has_not_begun_is_stopped_at_once():
    rows.failed()
    run = ask()
    assert bulk.stop(run, ANNA)
    run.refresh_from_db()
    assert run.finished_at is not None
    assert Task.objects.get(pk=run.task_id).status == "CANCELLED"
    assert not bulk.stop(run, ANNA)


def test_requeued_tasks_are_spread_evenly_over_the_chunks(small_chunks):
    ids = [rows.failed().pk for _ in range(21)]
    run = carried_out(spread_minutes=10)
    run.refresh_from_db()
    due = [Task.objects.get(pk=task_id).run_after for task_id in ids]
    delays = [(at - run.started_at).total_seconds() for at in due]
    assert delays == sorted(delays)
    for place, delay in enumerate(delays):
        assert delay == pytest.approx(600 * place / 21, abs=1.0)


def test_moving_in_bulk_changes_what_is_named():
    ids = rows.many(3, queue_name="mail")
    carried_out("edit", TaskFilter(queue_names=("mail",)), queue_name="slow", priority=-5)
    assert set(Task.objects.filter(pk__in=ids).values_list("queue_name", "priority")) == {("slow", -5)}


def test_dead_workers_tasks_are_taken_back_in_bulk():
    task = rows.processing(rows.dead_worker(), queue_name="mail")
    run = carried_out("recover", TaskFilter(queue_names=("mail",)))
    assert (run.done, Task.objects.get(pk=task.pk).status) == (1, "READY")


def test_the_task_of_a_run_is_none_of_its_subjects():
    rows.ready()
    run = carried_out("cancel", TaskFilter(statuses=("READY",)), reason="flood")
    assert Task.objects.get(pk=run.task_id).status == "READY"
    assert Task.objects.cancelled().count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_worker_carries_it_out():
    task = rows.failed()
    run = ask()
    run_due()
    run.refresh_from_db()
    assert (run.done, run.finished_at is not None) == (1, True)
    assert Task.objects.get(pk=run.task_id).return_value == {"looked": 1, "done": 1, "asked": 0, "refused": 0}
    assert Task.objects.get(pk=task.pk).attempt >= 5


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strategy", ["optimistic", "pessimistic"])
def test_a_worker_of_any_strategy_carries_it_out(strategy):
    """In a process of its own; the pessimistic one holds a transaction around the task."""
    ids = rows.many(3, queue_name="mail")
    run = ask("cancel", TaskFilter(queue_names=("mail",)), reason="flood")
    outcome = run_process("run_worker", "--burst", "--queue", "rowlock", "--strategy", strategy, "--json")
    run.refresh_from_db()
    assert (outcome.status, outcome.data["completed"], run.done) == (0, 1, 3)
    assert Task.objects.filter(pk__in=ids, status="CANCELLED").count() == 3


@pytest.mark.django_db(transaction=True)
def test_inside_a_transaction_it_takes_a_session_of_its_own():
    """As under the pessimistic strategy: no row stays locked until the transaction around the task ends."""
    task = rows.failed()
    run = ask()
    with transaction.atomic():
        bulk.in_own_session(bulk.carry_out, run.pk)
        transaction.set_rollback(True)
    assert Task.objects.get(pk=task.pk).status == "READY"


@pytest.mark.django_db(transaction=True)
def test_each_chunk_is_committed_by_itself(small_chunks, monkeypatch):
    for _ in range(15):
        rows.failed()
    run, seen, note = ask(), [], bulk.note

    def look(*arguments):
        with session(autocommit=True) as other:
            seen.append(
                other.execute("SELECT count(*) FROM tasks_task WHERE attempt = 5 AND status = 'READY'").fetchone()[0]
            )
        return note(*arguments)

    monkeypatch.setattr(bulk, "note", look)
    bulk.carry_out(run.pk)
    assert seen == [10, 15]


class TestOnce:
    """A form is carried out once for each token."""

    def test_a_second_click_finds_the_run_of_the_first(self):
        rows.failed()
        token = tokens.new_token()
        assert ask(token=token).pk == ask(token=token).pk
        assert BulkRun.objects.count() == 1
        assert Task.objects.filter(queue_name="rowlock").count() == 1

    @pytest.mark.django_db(transaction=True)
    def test_two_clicks_at_the_same_moment_do_one_thing(self):
        done = []

        def click() -> tokens.Submitted:
            try:
                return tokens.once("t" * 20, lambda: done.append(1) or "made")
            finally:
                connections.close_all()

        with session() as gate, ThreadPoolExecutor(2) as pool:
            gate.execute("LOCK TABLE tasks_submittedform IN EXCLUSIVE MODE")
            clicks = [pool.submit(click) for _ in range(2)]
            wait_until(lambda: waiting() == 2)
            gate.rollback()
        results = [future.result() for future in clicks]
        assert done == [1]
        assert {result.target for result in results} == {"made"}
        assert {result.is_new for result in results} == {True, False}

    def test_work_that_fails_can_be_tried_again(self):
        def fail() -> str:
            raise ValueError

        with pytest.raises(ValueError):
            tokens.once("t" * 20, fail)
        assert tokens.once("t" * 20, lambda: "made") == ("made", True)

    def test_tokens_are_forgotten_after_a_day(self):
        tokens.once("a" * 20, lambda: "")
        SubmittedForm.objects.update(at="2026-01-01T00:00Z")
        tokens.once("b" * 20, lambda: "")
        assert [form.token for form in SubmittedForm.objects.all()] == ["b" * 20]


def waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'")
        return cursor.fetchone()[0]


def test_the_actions_own_chunk_is_that_of_the_run():
    assert bulk.CHUNK == verb.CHUNK


def test_runs_that_are_long_over_are_pruned():
    rows.failed()
    old, under_way = carried_out(), ask()
    BulkRun.objects.update(created_at="2026-01-01T00:00Z")
    BulkRun.objects.filter(pk=old.pk).update(finished_at="2026-01-01T00:00Z")
    assert run("prune_history", "--older-than", "7d", "--json").data["tables"]["bulk_runs"] == 1
    assert BulkRun.objects.get() == under_way
