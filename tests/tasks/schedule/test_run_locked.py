"""`run_locked`: one run at a time, its output and status kept, and what cron sees of it."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.conf import settings
from django.db import connection

from tasks.locking import lock
from tasks.models import CommandRun, Lock
from tests.commands import database_url, run, run_process, start
from tests.jobs import Gate, shell, the_run, wait_until_held
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path / "gate")


class TestOneRun:
    def test_success(self):
        outcome = shell("echo out; echo err >&2")
        kept = the_run()
        assert (outcome.status, outcome.data["outcome"], outcome.data["exit_status"]) == (0, "succeeded", 0)
        assert outcome.data == {**outcome.data, "fence": kept.fence, "held_by": None}
        assert (kept.name, kept.outcome, kept.exit_status) == ("job", "succeeded", 0)
        assert sorted(kept.output.split()) == ["err", "out"]
        assert kept.started_at < kept.finished_at

    @pytest.mark.parametrize(("line", "status"), [("exit 7", 7), ("exit 255", 255), ("nonesuch-program", 127)])
    def test_the_exit_status_is_passed_on(self, line, status):
        outcome = shell(line)
        assert (outcome.status, outcome.data["exit_status"], outcome.data["outcome"]) == (status, status, "failed")
        assert (the_run().outcome, the_run().exit_status) == ("failed", status)
        assert f"job: the command ended with exit status {status}." in outcome.stderr

    @pytest.mark.parametrize("argv", [("nonesuch-program", "x"), ("/etc/passwd", "x")])
    def test_a_program_that_cannot_be_started(self, argv):
        outcome = shell(*argv)
        assert outcome.status in (126, 127)
        assert argv[0] in the_run().output
        assert "Traceback" not in outcome.stderr

    def test_a_command_that_kills_itself(self):
        outcome = shell("sh", "-c", "kill -9 $$")
        assert (outcome.status, outcome.data["outcome"], the_run().exit_status) == (137, "signalled", 137)

    def test_the_lock_is_free_afterwards(self):
        shell("false")
        with lock("job", ttl=30):
            pass

    def test_a_management_command_from_any_folder(self, tmp_path):
        argv = [sys.executable, settings.BASE_DIR / "manage.py", "run_locked", "status", "--", "queue_status", "--json"]
        environment = {**os.environ, "DATABASE_URL": database_url()}
        done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, json.loads(done.stdout)["queues"]) == (0, [])

    def test_each_word_reaches_the_program_untouched(self):
        words = ["--json", "a b", "$HOME", "--", "*", ""]
        shell(sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words)
        assert json.loads(the_run().output) == words

    def test_the_command_finds_its_fence(self):
        fence = shell("echo $ROWLOCK_LOCK_NAME $ROWLOCK_LOCK_FENCE").data["fence"]
        assert the_run().output == f"job {fence}\n"


class TestHeld:
    def test_of_eight_at_once_one_runs_and_the_others_say_75(self, gate):
        """Of twenty sessions one gets the lock: tests/tasks/locking/test_lock_sql.py."""
        processes = [start("run_locked", "job", "--json", *gate.command) for _ in range(8)]

        def seven_have_ended():
            return sum(process.poll() is not None for process in processes) == 7

        wait_until(seven_have_ended, seconds=120)
        gate.open()
        outcomes = [process.communicate(timeout=60)[0] for process in processes]
        assert sorted(process.returncode for process in processes) == [0] + 7 * [75]
        assert sum(json.loads(out)["outcome"] == "skipped" for out in outcomes) == 7
        assert CommandRun.objects.filter(outcome="skipped", exit_status=75).count() == 7

    def test_it_says_who_holds_it_and_since_when(self):
        with lock("job", ttl=30) as held:
            outcome = shell("true")
        holder = outcome.data["held_by"]
        assert (outcome.status, outcome.data["exit_status"], outcome.data["fence"]) == (75, 75, None)
        assert (holder["owner"], holder["pid"], holder["fence"]) == (held.owner, os.getpid(), held.fence)
        assert holder["since"] == Lock.objects.get().acquired_at.isoformat()
        assert f"held by {holder['hostname']} pid {os.getpid()}" in outcome.stderr
        assert (the_run().outcome, the_run().held_by, the_run().fence) == ("skipped", f"{held_by(held)}", None)

    def test_a_program_in_another_language_holds_it(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT rowlock_lock_acquire('job', 'nightly.pl', '1 min')")
        outcome = shell("true")
        assert (outcome.status, outcome.data["held_by"]["owner"]) == (75, "nightly.pl")

    def test_it_waits_when_told_to(self, gate):
        with start("run_locked", "job", *gate.command) as first:
            wait_until_held()
            with ThreadPoolExecutor() as pool:
                second = pool.submit(shell, "true", options=["--wait", "60"])
                wait_until(lambda: waiters() == 1)
                gate.open()
                assert second.result().status == 0
            first.communicate(timeout=60)
        first_run, second_run = CommandRun.objects.order_by("fence")
        assert first_run.finished_at <= second_run.started_at

    def test_the_wait_has_an_end(self):
        with lock("job", ttl=30):
            assert shell("true", options=["--wait", "0.2"]).status == 75

    def test_inside_itself_a_wait_would_never_end(self):
        inner = f"{sys.executable} manage.py run_locked job --wait 60 --shell -- true"
        outcome = shell(inner)
        assert outcome.status == 1
        assert "would never end" in the_run().output

    def test_other_names_do_not_matter(self):
        with lock("other job", ttl=30):
            assert shell("true").status == 0


def held_by(held):
    row = Lock.objects.get()
    return f"{row.hostname} pid {row.pid} ({held.owner})"


def waiters():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM tasks_lockwaiter")
        return cursor.fetchone()[0]


class TestUsage:
    @pytest.mark.parametrize(
        "argv",
        [(), ("job",), ("job", "--"), ("", "--", "check"), ("job", "--", "nonesuch"),
         ("job", "--ttl", "0", "--", "check"), ("job", "--ttl", "x", "--", "check"),
         ("job", "--expect-every", "daily", "--", "check"),
         ("job", "--expect-every", "0s", "--", "check"), ("job", "--wait", "-1", "--", "check")],
    )  # fmt: skip
    def test_a_command_line_that_says_too_little_or_nonsense(self, argv):
        assert run("run_locked", *argv).status == 2
        assert not CommandRun.objects.exists()

    def test_a_dry_run_tells_and_does_nothing(self):
        argv = ["run_locked", "job", "--dry-run", "--json", "--expect-every", "5m", "--shell", "--", "exit 7"]
        assert run(*argv).status == 0
        with lock("job", ttl=30) as held:
            outcome = run(*argv)
        assert (outcome.status, outcome.data["held_by"]["fence"]) == (75, held.fence)
        assert not CommandRun.objects.exists()

    def test_an_unfit_backend_is_one_line(self, monkeypatch):
        monkeypatch.setenv("ROWLOCK_LOCK_BACKEND", "cache:default")
        outcome = run_process("run_locked", "job", "--shell", "--", "true")
        assert (outcome.status, len(outcome.stderr.splitlines())) == (1, 1)
        assert "cannot keep a lock" in outcome.stderr

    def test_without_a_server_nothing_runs(self, tmp_path):
        nowhere = {"DATABASE_URL": "postgres://nobody@/nothing?host=/nonexistent"}
        outcome = run_process("run_locked", "job", "--json", "--shell", "--", f"touch {tmp_path / 'ran'}", env=nowhere)
        assert (outcome.status, "did not answer" in outcome.data["error"]) == (1, True)
        assert not (tmp_path / "ran").exists()


def test_the_next_run_marks_one_that_died_without_a_word():
    CommandRun.objects.create(name="job", argv=["x"], fence=1)
    CommandRun.objects.create(name="other job", argv=["x"], fence=1)
    shell("true")
    outcomes = CommandRun.objects.order_by("pk").values_list("outcome", flat=True)
    assert list(outcomes) == ["abandoned", "running", "succeeded"]


def test_it_runs_on_every_backend(backend, monkeypatch):
    monkeypatch.setenv("ROWLOCK_LOCK_BACKEND", backend)
    with lock("job", ttl=30):
        assert shell("true").status == 75
    assert shell("true").status == 0
    assert set(CommandRun.objects.values_list("outcome", flat=True)) == {"skipped", "succeeded"}
