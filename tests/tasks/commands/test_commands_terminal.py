"""Tables and trees on a terminal, their colours and width, pictures that are drawn again, and errors."""

import doctest
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from django.conf import settings

from tasks.commands import output
from tasks.commands.output import ENDLESS, Lines, Table, Window, render
from tasks.models import Task
from tests.commands import database_url, run, run_process, start
from tests.sessions import session
from tests.tasks import rows
from tests.tasks.commands.terminal import shown, terminal
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
HOME = "\x1b[H"
LONG = "a-queue-with-a-name-of-more-than-forty-letters"


class TestTables:
    def test_text_is_left_and_numbers_are_right(self):
        text = render(Table(("WHO", "AGE", "N"), [("anna", "12 s", 7), ("b", "1.5 ms", None)]))
        assert text.splitlines() == ["WHO      AGE  N", "anna    12 s  7", "b     1.5 ms  -"]

    def test_a_table_without_rows_has_its_headings(self):
        assert render(Table(("WHO", "AGE"), [])) == "WHO  AGE"

    @pytest.mark.parametrize("columns", [40, 60, 100])
    def test_the_window_cuts_the_widest_text_and_no_number(self, columns):
        table = Table(("QUEUE", "READY", "WHY"), [("mail", 1_234_567, "w" * 200), (LONG, 1, "short")])
        lines = render(table, Window(columns, 24)).splitlines()
        assert max(map(len, lines)) <= columns
        assert ["1234567" in lines[1], "…" in lines[1], len(lines)] == [True, True, 3]

    def test_a_number_is_whole_even_where_the_lines_are_too_long(self):
        table = Table(("QUEUE", "READY", "FAILED"), [("mail", 1_234_567, 7_654_321), (LONG, 1, 2)])
        lines = render(table, Window(15, 24)).splitlines()
        assert lines[1].split() == ["mail", "1234567", "7654321"]
        assert lines[2].split() == [LONG[:7] + "…", "1", "2"]
        wide = Table(("QUEUE", "N"), [("q" * 14, 123_456_789_012_345)])
        assert render(wide, Window(26, 24)).split()[-2:] == ["q" * 9 + "…", "123456789012345"]

    def test_nothing_is_cut_without_a_window(self):
        assert "w" * 5000 in render(Table(("WHY",), [("w" * 5000,)]))
        assert ENDLESS > 50_000

    def test_names_are_neither_markup_nor_line_breaks_nor_movements(self):
        text = render(
            [Table(("Q",), [("[red]x[/red] :smile:\n\x1b[2J",)]), Lines(["[b]y\n\x1b[2J"])], Window(80, 24, True)
        )
        assert "[red]x[/red] :smile:\\n\\x1b[2J" in text
        assert "[b]y\\n\\x1b[2J" in text

    def test_a_line_of_a_tree_is_cut_and_stays_one(self):
        text = render(output.branches([(0, "a" * 50), (1, "b" * 50), (1, "c")]), Window(20, 24))
        assert text.splitlines() == ["a" * 19 + "…", "├ " + "b" * 17 + "…", "└ c"]

    def test_the_examples(self):
        results = doctest.testmod(output)
        assert (results.failed, results.attempted > 1) == (0, True)

    def test_more_lines_than_the_window_has_are_counted(self):
        window = Window(10, 5)
        assert window.fitting(["x"] * 3) == ["x"] * 3
        assert window.fitting(["x"] * 5) == ["x", "x", "x", "… and 2 more lines"]
        assert window.fitting(["x" * 25, "y"]) == ["x" * 25, "… and 1 more lines"], "a long line takes three"
        assert window.fitting(["\x1b[31m" + "x" * 8 + "\x1b[0m"] * 3)[-1].startswith("\x1b"), "colours take no room"


class TestColours:
    def test_a_terminal_has_them_and_the_width_is_heeded(self):
        rows.ready(queue_name=LONG)
        rows.failed(queue_name=LONG)
        narrow, wide = shown("queue_status", columns=80), shown("queue_status", columns=160)
        assert "\x1b[31m" in narrow.raw
        assert max(map(len, narrow.text.splitlines())) <= 80
        assert ["…" in narrow.text, LONG in wide.text] == [True, True]

    @pytest.mark.parametrize(("argv", "env"), [((), {"NO_COLOR": "1"}), (("--no-color",), {}), ((), {"TERM": "dumb"})])
    def test_they_can_be_turned_off(self, argv, env):
        rows.failed()
        screen = shown("queue_status", "--max-stale", 0, *argv, **env)
        assert ("\x1b" in screen.raw, "QUEUE" in screen.text) == (False, True)

    def test_an_error_has_none_under_no_color(self):
        assert "\x1b[31" in shown("requeue_tasks", 1).raw
        assert "\x1b[31" not in shown("requeue_tasks", 1, NO_COLOR="1").raw

    def test_a_pipe_has_none_unless_they_are_forced(self):
        rows.failed()
        assert "\x1b" not in run_process("queue_status").stdout
        assert "\x1b[31m" in run_process("queue_status", "--force-color", env={"NO_COLOR": "1"}).stdout


class TestErrors:
    def test_a_run_with_refusals_ends_with_its_result(self):
        outcome = run_process("requeue_tasks", rows.ready().pk)
        assert (outcome.status, outcome.stderr.splitlines()[-1]) == (1, "1 task refused.")
        assert "Error" not in outcome.stderr

    def test_a_wrong_line_says_what_is_missing(self):
        outcome = run_process("requeue_tasks")
        assert (outcome.status, outcome.stderr.partition(" ")[0]) == (2, "Which")

    def test_traceback_still_works(self):
        outcome = run_process("requeue_tasks", "--traceback")
        assert "Traceback (most recent call last)" in outcome.stderr

    def test_code_that_calls_a_command_gets_the_exception(self):
        from django.core.management import CommandError, call_command

        with pytest.raises(CommandError, match="1 task refused"):
            call_command("requeue_tasks", rows.ready().pk)


def imports_rich(*argv: object) -> bool:
    outcome = run_process(*map(str, argv), env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert "tasks.commands" in outcome.stderr
    return " rich" in outcome.stderr


IMPORTED_BY = """
import json, sys, django
django.setup()
from tests.commands import run
for argv in json.loads(sys.argv[1]):
    assert run(*argv).status in (0, 1), argv
    if "rich" in sys.modules:
        sys.exit(f"{argv} imports rich")
"""


def test_rich_is_imported_only_where_a_table_is_printed():
    """The commands one after the other in one process; by itself what starts processes, or does print a table."""
    task = rows.failed()
    quiet = [
        ("queue_status", "--json"), ("queue_status", "-v0"), ("show_locks", "--json"), ("list_tasks", "--json"),
        ("list_tasks", "--csv"), ("requeue_tasks", task.pk), ("list_tasks", "--help"),
    ]  # fmt: skip
    environment = {**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    line = [sys.executable, "-c", IMPORTED_BY, json.dumps(quiet)]
    done = subprocess.run(line, cwd=settings.BASE_DIR, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not imports_rich("run_worker", "--burst")
    assert imports_rich("queue_status")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ((), "Serves every queue · strategy skip_locked · 1 process · ends when nothing is due"),
        (
            ("--queue", "b", "--queue", "a", "--strategy", "optimistic", "--concurrency", 2, "--max-tasks", 5),
            "Serves b, a · strategy optimistic · 2 processes · ends after 5 tasks · ends when nothing is due",
        ),
    ],
)
def test_a_worker_says_what_it_serves(argv, line):
    assert run_process("run_worker", "--burst", *argv).stdout.splitlines()[0] == line


def test_a_worker_with_json_says_it_on_stderr():
    outcome = run_process("run_worker", "--burst", "--json")
    assert (outcome.data["claimed"], outcome.stderr.startswith("Serves every queue")) == (0, True)
    assert run_process("run_worker", "--burst", "-v0").stdout == ""


class TestWatch:
    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_terminal_shows_the_newest_state_until_a_signal(self, number, status):
        with terminal("queue_status", "--watch", 0.1, rows=6) as screen:
            wait_until(lambda: "No queue has a task yet" in screen.text)
            rows.many(20)
            wait_until(lambda: "default     20" in screen.text and screen.raw.count(HOME) > 2)
            assert screen.end(number) == status
        pictures = screen.raw.split(HOME)[1:]
        assert len(pictures) > 2
        assert max(picture.count("\n") for picture in pictures) < 6, "or the window would scroll"
        assert "Traceback" not in screen.raw

    def test_what_is_wrong_stands_above_the_table(self):
        rows.processing("w-gone")
        with terminal("queue_status", "--watch", 0.1, "--max-stale", 0, columns=160, NO_COLOR="1") as screen:
            wait_until(lambda: "DONE/H" in screen.text)
            screen.end(signal.SIGINT)
        picture = screen.raw.split(HOME)[1]
        assert picture.index("Stale tasks: 1 in default") < picture.index("Unhealthy") < picture.index("DONE/H")
        assert "\x1b[31m" not in picture

    def test_a_failure_is_shown_and_the_next_picture_may_succeed(self):
        with terminal("queue_status", "--watch", 0.1, columns=200) as screen:
            wait_until(lambda: "No queue has a task yet" in screen.text)
            with session() as other:
                other.execute("LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
                wait_until(lambda: "The database refused" in screen.text)
            seen = len(screen.raw)
            wait_until(lambda: "No queue has a task yet" in screen.raw[seen:])
            assert screen.end(signal.SIGINT) == 130

    def test_a_failure_of_the_first_ends_the_command(self):
        with session() as other:
            other.execute("LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
            assert run_process("queue_status", "--watch").status == 1
        assert run("show_locks", "--watch", "1", "--table", "tasks_task").status == 2
        assert run("queue_status", "--watch", "0").status == 2

    def test_a_pipe_gets_one_report_an_interval_and_the_status_when_its_reader_leaves(self):
        rows.processing("w-gone")
        began = time.monotonic()
        with start("queue_status", "--watch", 0.5, "--max-stale", 0, "--json") as process:
            lines = [process.stdout.readline() for _ in range(3)]
            lasted = time.monotonic() - began
            process.stdout.close()
            err = process.stderr.read()
            assert process.wait(timeout=60) == 3
        assert all('"stale": 1' in line for line in lines)
        assert lasted > 1.0
        assert err.count("Unhealthy") >= 3
        assert "\x1b" not in err

    def test_a_pipe_without_json_gets_the_time_above_each_table(self):
        rows.ready()
        with start("queue_status", "--watch", 0.1) as process:
            lines = [process.stdout.readline().strip() for _ in range(8)]
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 130
        assert lines[0].count(":") == 2
        assert [line for line in lines if line.startswith("QUEUE")][1:]
        assert Task.objects.count() == 1
