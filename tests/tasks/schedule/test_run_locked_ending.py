"""A run that ends before its time: by signals, by the loss of its lock, by the death of `run_locked`."""

import contextlib
import signal
import time

import psutil
import pytest
from django.db import connection

from tasks.locking import lock
from tasks.models import CommandRun
from tests.commands import start
from tests.jobs import shell, the_run, wait_until_held
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SLEEP = "sleep 1000"
STUBBORN = "trap '' TERM INT; echo ready; while :; do sleep 0.1; done"


@contextlib.contextmanager
def running(*argv, options=()):
    """`run_locked` with its command started; whatever is left of either is killed at the end."""
    with start("run_locked", "job", "--json", *options, "--shell", "--", *argv) as process:
        try:
            wait_until_held()
            tree = Tree(process)
            yield tree
        finally:
            process.kill()


class Tree:
    """A `run_locked`, its guard and the command below them."""

    def __init__(self, process):
        self.process = process
        self.me = psutil.Process(process.pid)
        self.below = wait_until(self.command_and_guard)

    def command_and_guard(self):
        below = self.me.children(recursive=True)
        return below if len(below) >= 2 else None

    def wait_for(self, name, number):
        """Until so many programs of this name run below: a shell that is interrupted while it starts them goes on."""
        wait_until(lambda: [process.name() for process in self.me.children(recursive=True)].count(name) == number)
        self.below = self.command_and_guard()

    def send(self, number):
        self.process.send_signal(number)

    def is_below_gone(self):
        return not any(process.is_running() and process.status() != "zombie" for process in self.below)

    def end(self):
        """Exit status and stderr, once it has ended."""
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


def steal():
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tasks_lock SET owner = 'thief', fence = fence + 1 WHERE name = 'job'")


class TestSignals:
    @pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_they_reach_the_command_and_what_it_has_started(self, number, status):
        with running("sh", "-c", f"{SLEEP} & {SLEEP}") as tree:
            tree.wait_for("sleep", 2)
            tree.send(number)
            assert tree.end()[0] == status
            assert tree.is_below_gone()
        assert (the_run().outcome, the_run().exit_status) == ("signalled", status)

    def test_a_command_that_stops_in_order_has_its_own_status(self):
        with running("sh", "-c", "trap 'echo stopped; exit 0' TERM; while :; do sleep 0.1; done") as tree:
            time.sleep(0.5)  # for the shell to set its trap, which nothing shows
            tree.send(signal.SIGTERM)
            assert tree.end()[0] == 0
        assert (the_run().outcome, the_run().output.split()[-1]) == ("succeeded", "stopped")

    def test_the_second_signal_ends_it_at_once(self):
        with running("sh", "-c", STUBBORN) as tree:
            time.sleep(0.5)
            tree.send(signal.SIGTERM)
            time.sleep(0.3)
            assert tree.process.poll() is None
            tree.send(signal.SIGTERM)
            assert tree.end()[0] == 137
        assert the_run().outcome == "signalled"

    def test_while_it_waits_for_the_lock_it_just_ends(self):
        with lock("job", ttl=30), start("run_locked", "job", "--wait", 60, "--shell", "--", "true") as process:
            wait_until(lambda: waiters() == 1)
            process.terminate()
            process.communicate(timeout=30)
            assert process.returncode == 143
        assert not CommandRun.objects.exists()


def waiters():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM tasks_lockwaiter")
        return cursor.fetchone()[0]


class TestALostLock:
    def test_the_command_is_stopped(self):
        with running(SLEEP, options=["--ttl", "1"]) as tree:
            steal()
            status, err = tree.end()
            assert (status, "was lost while its command ran" in err) == (143, True)
            assert tree.is_below_gone()
        assert the_run().outcome == "lost"

    def test_one_that_does_not_stop_is_killed(self):
        with running("sh", "-c", STUBBORN, options=["--ttl", "1"]) as tree:
            steal()
            assert tree.end()[0] == 137
            assert tree.is_below_gone()
        assert the_run().outcome == "lost"

    def test_a_loss_that_only_the_end_finds_is_no_success(self):
        with running("sleep 1", options=["--ttl", "300"]) as tree:
            steal()
            assert tree.end()[0] == 1
        assert (the_run().outcome, the_run().exit_status) == ("lost", 1)


class TestADeadRunner:
    """The guard ends the command before the lock of the dead passes on."""

    def test_killed_its_command_is_gone_before_the_next_one_runs(self):
        with running("sh", "-c", f"{SLEEP} & {STUBBORN}", options=["--ttl", "300"]) as tree:
            tree.process.kill()
            pids = " ".join(str(process.pid) for process in tree.below)
            alive = (
                f"for pid in {pids}; do kill -0 $pid 2>/dev/null && grep -L 'State:.Z' /proc/$pid/status; done; true"
            )
            assert shell(alive, options=["--wait", "30"]).status == 0
        abandoned, succeeded = CommandRun.objects.order_by("pk")
        assert (abandoned.outcome, succeeded.outcome, succeeded.output) == ("abandoned", "succeeded", "")

    def test_frozen_past_its_lease_its_command_is_ended_all_the_same(self):
        with running(SLEEP, options=["--ttl", "2"]) as tree:
            tree.send(signal.SIGSTOP)
            wait_until(tree.is_below_gone)
            assert shell("true", options=["--wait", "30"]).status == 0
            tree.send(signal.SIGCONT)
            assert "was lost while its command ran" in tree.end()[1]
        assert CommandRun.objects.filter(outcome="lost").count() == 1

    def test_a_killed_guard_leaves_no_command_behind(self):
        with running("sh", "-c", f"{SLEEP} & {SLEEP}") as tree:
            tree.me.children()[0].kill()
            assert tree.end()[0] == 137
            wait_until(tree.is_below_gone)


def test_the_lease_is_renewed_while_it_runs():
    with running("sleep 3", options=["--ttl", "1"]) as tree:
        while tree.process.poll() is None:
            status = shell("true").status
            assert status == 75 or tree.process.wait(5) == 0
        assert tree.end()[0] == 0
