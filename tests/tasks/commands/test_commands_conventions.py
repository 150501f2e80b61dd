"""What cron and scripts rely on in every command: exit status, one JSON object, silence, signals, closed pipes."""

import os
import pty
import signal

import pytest
from django.db import connection

from tasks.models import Intervention, Task
from tests.commands import run, run_process, start
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
NO_SERVER = {"DATABASE_URL": "postgres://nobody@/nothing?host=/nonexistent"}


class TestExitStatus:
    def test_done_says_so_on_stdout_alone(self):
        outcome = run_process("requeue_tasks", rows.failed().pk)
        assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "1 task requeued.\n", "")

    def test_refused_is_a_failure_that_names_the_reason_on_stderr(self):
        task = rows.ready()
        outcome = run("requeue_tasks", task.pk)
        assert (outcome.status, outcome.stdout) == (1, "0 tasks requeued.\n")
        assert outcome.stderr.splitlines()[0] == f"Task {task.pk}: it is READY already and waits for a worker."

    def test_a_command_line_that_says_too_little_or_nonsense(self):
        nonsense = [("0",), ("--status", "GONE"), ("--older-than", "7 days"), ("9" * 30,)]
        for outcome in [run_process("requeue_tasks"), *(run("requeue_tasks", *argv) for argv in nonsense)]:
            assert (outcome.status, outcome.stdout) == (2, ""), outcome.stderr
            assert "Traceback" not in outcome.stderr

    @pytest.mark.parametrize(
        ("line", "wanted"),
        [
            ("transfer x 2 1.00", "an id"),
            ("resolve_emails x --as sent", "an id"),
            ("show_locks --table orders_order --ids x", "an id"),
            ("signal_backend x --started 2026-01-01 --cancel", "a pid"),
        ],
    )
    def test_a_number_that_is_none_is_called_what_it_should_be(self, line, wanted):
        outcome = run(*line.split())
        assert (outcome.status, f"'x' is not {wanted}: a whole number" in outcome.stderr) == (2, True)

    def test_a_setting_that_cannot_be_read_is_named(self):
        outcome = run_process("queue_status", "--json", env={"ROWLOCK_LEASE_SECONDS": "soon"})
        assert (outcome.status, "ROWLOCK_LEASE_SECONDS='soon'" in outcome.data["error"]) == (1, True)
        assert len(outcome.stderr.splitlines()) == 1

    def test_without_a_server_it_says_what_to_do(self):
        outcome = run_process("queue_status", "--json", env=NO_SERVER)
        assert outcome.status == 1
        assert "Check DATABASE_URL" in outcome.data["error"]
        assert len(outcome.stderr.splitlines()) == 1

    @pytest.mark.parametrize("line", ["queue_status", "run_worker", "run_worker --burst", "run_locked x -- check"])
    def test_without_tables_it_says_what_to_do(self, line):
        with connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA empty")
        try:
            outcome = run_process(*line.split(), env={"PGOPTIONS": "-c search_path=empty"})
        finally:
            with connection.cursor() as cursor:
                cursor.execute("DROP SCHEMA empty")
        assert outcome.status == 1
        assert "manage.py migrate" in outcome.stderr
        assert len(outcome.stderr.splitlines()) == 1


class TestJson:
    def test_one_object_on_stdout_and_the_rest_on_stderr(self):
        task = rows.ready()
        outcome = run_process("requeue_tasks", task.pk, "--json")
        assert (outcome.status, outcome.data["requeued"]) == (1, 0)
        assert outcome.data["refused"][0]["reason"] == "ready"
        assert "READY already" in outcome.stderr

    def test_a_long_list_of_refusals_is_whole_in_json_and_short_on_stderr(self):
        ids = rows.many(30)
        outcome = run("requeue_tasks", *ids, "--json")
        assert len(outcome.data["refused"]) == 30
        assert outcome.stderr.splitlines()[20] == "… and 10 more; --json lists them all."

    def test_bytes_that_are_no_text_are_a_usage_error(self):
        outcome = run_process("requeue_tasks", "1", "--reason", b"\xff".decode(errors="surrogateescape"))
        assert (outcome.status, "not valid UTF-8" in outcome.stderr) == (2, True)


class TestVerbosity:
    def test_v0_is_silent_when_all_is_well(self):
        outcome = run("requeue_tasks", rows.failed().pk, "-v0")
        assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "")

    def test_v0_speaks_when_something_is_wrong(self):
        outcome = run("requeue_tasks", 1, "-v0")
        assert (outcome.status, outcome.stdout, "the task does not exist" in outcome.stderr) == (1, "", True)

    def test_progress_is_one_line_rewritten_on_a_terminal(self):
        rows.many(1500, status="FAILED", attempt=1, finished_at="2026-01-01T00:00:00Z")
        ours, theirs = pty.openpty()
        with start("requeue_tasks", "--status", "FAILED", stderr=theirs) as process:
            os.close(theirs)
            shown = os.read(ours, 1000)
            process.communicate(timeout=60)
        os.close(ours)
        assert shown.startswith(b"\r\x1b[K1000 of 1500 done")

    def test_progress_is_quiet_on_a_pipe_when_it_is_quick(self, monkeypatch):
        monkeypatch.setattr("tasks.commands.output.EVERY_SECONDS", 600.0)  # quick is what a busy machine may not be
        rows.many(1500, status="FAILED", attempt=1, finished_at="2026-01-01T00:00:00Z")
        outcome = run("requeue_tasks", "--status", "FAILED")
        assert (outcome.stdout, outcome.stderr) == ("1500 tasks requeued.\n", "")


@pytest.mark.parametrize(
    ("state", "argv"),
    [
        (rows.failed, ["requeue_tasks"]),
        (rows.ready, ["cancel_tasks"]),
        (rows.ready, ["edit_tasks", "--set-priority", "5"]),
    ],
)
def test_a_dry_run_locks_the_same_rows_and_changes_nothing(state, argv):
    held, free = state(), state()
    with session() as other:
        other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [held.pk])
        outcome = run(*argv, held.pk, free.pk, "--dry-run", "--json")
    assert (outcome.status, outcome.data["ids"]) == (1, [free.pk])
    assert outcome.data["refused"][0]["reason"] == "locked"
    assert not Task.objects.exclude(version=held.version).exists()
    assert not Intervention.objects.exists()
    assert "would be" in run(*argv, free.pk, "--dry-run").stdout


class TestSignals:
    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_the_first_finishes_the_item_and_tells_what_was_done(self, number, status):
        with rows.living_worker() as worker:
            idle, running = rows.ready(), rows.processing(worker)
            with start("cancel_tasks", idle.pk, running.pk, "--wait", 60, "--json") as process:
                wait_until(lambda: Task.objects.filter(cancel_requested_at__isnull=False).exists())
                process.send_signal(number)
                out, err = process.communicate(timeout=30)
        assert process.returncode == status
        assert f'"ids": [{idle.pk}]' in out
        assert ("Interrupted" in err, "Traceback" in err) == (True, False)

    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_outside_of_items_it_ends_at_once_even_inside_a_statement(self, number, status):
        with session() as other:
            other.execute("LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
            with start("queue_status") as process:
                wait_until(lambda: is_blocked("rowlock:cmd:queue_status"))
                process.send_signal(number)
                _, err = process.communicate(timeout=30)
        assert (process.returncode, "Traceback" in err) == (status, False)


def is_blocked(application_name):
    """Whether that session waits for a lock, as PostgreSQL says."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM pg_stat_activity WHERE application_name = %s AND cardinality(pg_blocking_pids(pid)) > 0",
            [application_name],
        )
        return cursor.rowcount


class TestReadersThatLeave:
    @pytest.mark.parametrize("argv", [["queue_status"], ["queue_status", "--json"]])
    def test_a_closed_stdout_is_no_failure(self, argv):
        with start(*argv) as process:
            process.stdout.close()
            err = process.stderr.read()
            process.wait(timeout=60)
        assert (process.returncode, err) == (0, "")

    def test_a_closed_stderr_keeps_the_exit_status(self):
        rows.processing("w-gone")
        with start("queue_status", "--max-stale", 0, "--json") as process:
            process.stderr.close()
            out = process.stdout.read()
            process.wait(timeout=60)
        assert (process.returncode, '"stale": 1' in out) == (3, True)


class TestTheOperator:
    def test_is_who_the_kernel_says_not_the_environment(self):
        run_process("requeue_tasks", rows.failed().pk, env={"LOGNAME": "mallory", "USER": "mallory"})
        assert "mallory" not in Intervention.objects.get().actor

    def test_control_characters_of_others_do_not_reach_the_terminal(self):
        outcome = run("pause_queue", "\x1b]0;owned\x07")
        assert "\x1b" not in outcome.stdout + outcome.stderr
