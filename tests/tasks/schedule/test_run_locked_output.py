"""What a command under `run_locked` prints: passed on untouched, kept in bounds, and without secrets."""

import os
import sys

import pytest

from tasks.locking import lock
from tests.commands import run_process, start
from tests.jobs import shell, the_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_passes_through_byte_for_byte_on_its_own_stream():
    script = "import sys; sys.stdout.buffer.write(bytes(range(14, 256))); sys.stderr.buffer.write(b'err')"
    argv = ["run_locked", "job", "--shell", "--", sys.executable, "-c", script]
    outcome = run_process(*argv, encoding="latin-1")
    assert (outcome.stdout, outcome.stderr) == (bytes(range(14, 256)).decode("latin-1"), "err")


def test_with_json_it_goes_to_stderr():
    outcome = shell("echo out")
    assert (outcome.data["outcome"], "out" in outcome.stderr) == ("succeeded", True)


def test_a_success_says_nothing_of_its_own():
    outcome = run_process("run_locked", "job", "--shell", "--", "echo out")
    assert (outcome.stdout, outcome.stderr) == ("out\n", "")


def test_v0_is_silent_until_the_command_fails():
    outcome = run_process("run_locked", "job", "-v0", "--shell", "--", "echo out; echo err >&2")
    assert (outcome.stdout, outcome.stderr) == ("", "")
    outcome = run_process("run_locked", "job", "-v0", "--shell", "--", "echo out; exit 3")
    assert (outcome.status, outcome.stdout) == (3, "")
    assert "out\n" in outcome.stderr


def test_v0_does_not_speak_of_another_run_that_is_still_at_work():
    with lock("job", ttl=30):
        outcome = run_process("run_locked", "job", "-v0", "--shell", "--", "true")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (75, "", "")


def test_of_a_flood_head_and_tail_are_kept():
    shell("echo first; head -c 500000 /dev/zero | tr '\\0' x; echo; echo last")
    output = the_run().output
    assert len(output) < 70_000
    assert (output.startswith("first\n"), output.endswith("last\n")) == (True, True)
    assert "bytes left out" in output


def test_what_no_text_can_hold_is_made_visible():
    run_process("run_locked", "job", "-v0", "--shell", "--", "printf 'nul \\0 and \\377\\n'")
    assert the_run().output == "nul \\x00 and \N{REPLACEMENT CHARACTER}\n"


def test_secrets_of_the_command_line_are_not_kept():
    shell("sh", "-c", "echo got $2 $3", "x", "--password", "hunter22", "--api-key=abcdef", "TOKEN=ghijkl")
    kept = the_run()
    assert kept.argv[4:] == ["--password", "[redacted]", "--api-key=[redacted]", "TOKEN=[redacted]"]
    assert kept.output == "got [redacted] --api-key=[redacted]\n"


def test_a_reader_that_leaves_is_no_failure():
    with start("run_locked", "job", "--shell", "--", "sleep 0.2; echo out; sleep 0.2; echo out") as process:
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert the_run().output == "out\nout\n"


def test_a_daemon_that_is_left_behind_does_not_keep_the_run():
    outcome = shell(f"{sys.executable} -c 'import os, time; os.setsid(); print(os.getpid()); time.sleep(60)' & sleep 1")
    daemon = int(the_run().output.split()[0])
    os.kill(daemon, 9)
    assert outcome.data["outcome"] == "succeeded"
