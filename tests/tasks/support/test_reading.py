"""Reasons, names and numbers are read alike by Python's doors, by the commands, by SQL and by the tables."""

from argparse import ArgumentTypeError
from datetime import timedelta

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.utils import timezone

from tasks import operations
from tasks.commands import types
from tasks.compat import InvalidTask
from tasks.exceptions import InvalidArguments
from tasks.locking import lock
from tasks.models import Intervention, Queue, Task
from tasks.operations import Settings
from tasks.support import audit, reading
from tasks.support.audit import Change, Who
from tasks.support.reading import LONGEST_ACTION, LONGEST_NAME, LONGEST_PATH, LONGEST_REASON, LONGEST_TARGET, Unreadable
from tests import old_rows
from tests.commands import run
from tests.tasks import rows
from tests.tasks.handlers import nothing

pytestmark = pytest.mark.django_db
ANNA = Who("anna", "page")
CONTROLS = ["\x01", "\t", "\n", "\r", "\x1b", "\x1f", "\x7f", "\x85", "\x9f"]
HARMLESS = " ~\xa0é\u202e\u2028😀"
INDIRECT = ["1_000", "1e1", "٣", "\uff11\uff12", "+5", " 5", "5 ", "0x10", "", "-", "1.0", "inf", "nan", "9" * 4300]
ENQUEUE = "SELECT rowlock_enqueue(%s::text, queue => %s::text, ordering_key => %s::text)"


def refused_by_sql(statement: str, *params: object) -> str:
    """Why the database refuses this; empty when it does not."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement, params)
    except DatabaseError as error:
        return str(error)
    return ""


class TestNumbers:
    @pytest.mark.parametrize("written", INDIRECT)
    @pytest.mark.parametrize("kind", [types.count, types.priority, types.row_id, types.fence, types.limit, types.pid])
    def test_only_plain_digits_are_a_whole_number(self, kind, written):
        with pytest.raises(ArgumentTypeError):
            kind(written)

    @pytest.mark.parametrize("written", [written for written in INDIRECT if written != "1.0"])
    def test_only_plain_digits_are_a_decimal(self, written):
        with pytest.raises(Unreadable):
            reading.decimal(written)
        with pytest.raises(ArgumentTypeError):
            types.seconds(written)

    def test_plain_ones_are_read(self):
        assert (types.count("007"), types.priority("-100")) == (7, -100)
        assert (types.seconds("2.5"), types.seconds(".5")) == (2.5, 0.5)
        assert str(reading.decimal("12.50")) == "12.50"

    def test_a_command_says_it_in_one_short_line(self):
        for argv in (
            ("release_lock", "nightly", "--fence", "9" * 5000),
            ("requeue_tasks", "1_000"),
            ("enqueue_task", nothing.module_path, "--priority", "٣"),
            ("up", "--port", "8_0"),
            ("run_pattern", "unsafe", "--workers", "٣"),
        ):
            outcome = run(*argv)
            assert outcome.status == 2
            assert "Traceback" not in outcome.stderr
            assert max(map(len, outcome.stderr.splitlines())) < 300


class TestNames:
    @pytest.mark.parametrize("control", CONTROLS)
    def test_control_characters_are_refused_at_every_door(self, control):
        name = f"mail{control}all is well"
        with pytest.raises(InvalidTask, match="control character"):
            nothing.using(queue_name=name)
        with pytest.raises(InvalidTask, match="control character"):
            nothing.using(ordering_key=name)
        with pytest.raises(ValueError, match="control character"):
            lock(name, ttl=1)
        with pytest.raises(Unreadable, match="control character"):
            operations.pause(name, ANNA)
        with pytest.raises(Unreadable, match="control character"):
            operations.edit([1], ANNA, Settings(queue_name=name))
        for argv in (("pause_queue", name), ("run_worker", "--queue", name), ("run_locked", name, "--", "check")):
            outcome = run(*argv)
            assert (outcome.status, "control character" in outcome.stderr) == (2, True)
        assert "at most 500 fit" in refused_by_sql(ENQUEUE, f"a.{'b' * LONGEST_PATH}", "q", None)
        for path, queue, key in ((f"a.b{control}", "q", None), ("a.b", name, None), ("a.b", "q", name)):
            assert refused_by_sql(ENQUEUE, path, queue, key)
        assert "control characters" in refused_by_sql(ENQUEUE, "a.b", name, None)
        assert "control characters" in refused_by_sql(ENQUEUE, "a.b", "q", name)
        for owner in ("me", name):
            told = refused_by_sql("SELECT rowlock_lock_acquire(%s::text, %s::text, '30 s')", name, owner)
            assert "must not hold control characters" in told

    def test_a_key_from_a_callable_is_read_too(self):
        with pytest.raises(InvalidArguments, match="control character"):
            nothing.using(ordering_key=lambda: "a\nb").enqueue()

    def test_what_is_no_control_character_stays_allowed(self):
        assert reading.name(HARMLESS) == HARMLESS
        assert refused_by_sql(ENQUEUE, "a.b", HARMLESS, HARMLESS) == ""
        assert nothing.using(queue_name=HARMLESS, ordering_key=HARMLESS).enqueue()


class TestReasons:
    @pytest.mark.parametrize(
        ("reason", "words"),
        [
            ("x" * (LONGEST_REASON + 1), "at most 1000 fit"),
            ("a\0b", "NUL"),
            ("line\nline", "control character"),
            ("\x1b[2J", "control character"),
            ("half\ud800", "surrogate"),
        ],
    )
    def test_what_cannot_be_kept_is_refused_in_words(self, reason, words):
        with pytest.raises(Unreadable, match=words):
            operations.pause("mail", ANNA, reason=reason)
        outcome = run("pause_queue", "mail", "--reason", reason)
        assert outcome.status == 2
        assert words in outcome.stderr or "not valid UTF-8" in outcome.stderr
        assert not Intervention.objects.exists()
        assert not Queue.objects.exists()

    def test_the_longest_is_kept_without_the_blanks_around_it(self):
        operations.pause("mail", ANNA, reason=f"  {'x' * LONGEST_REASON} ")
        assert Intervention.objects.get().reason == "x" * LONGEST_REASON

    def test_what_programs_put_together_is_cut_and_never_refused(self):
        audit.record(connection, Who("a\nb", "page"), f"edit {'x' * 5000}", [Change(f"queue:{'y' * 900}\x1b")], "why")
        entry = Intervention.objects.get()
        assert (entry.actor, len(entry.action), len(entry.target)) == (r"a\nb", LONGEST_ACTION, LONGEST_TARGET)
        assert (entry.action[-1], entry.target[-1]) == ("…", "…")


TASK = "INSERT INTO tasks_task (task_path, queue_name, ordering_key) VALUES (%s, %s, %s)"
AUDIT = "INSERT INTO tasks_intervention (actor, source, action, target, reason) VALUES (%s, 'page', %s, %s, %s)"
LOCK = "INSERT INTO tasks_lock (name, owner, acquired_at, expires_at) VALUES (%s, %s, now(), now())"
WAITER = "INSERT INTO tasks_lockwaiter (name, owner) VALUES (%s, %s)"
# What each statement is given, and the longest of it that Python keeps.
TABLES = {
    "task": (TASK, {"task_path": LONGEST_PATH, "queue_name": LONGEST_NAME, "ordering_key": LONGEST_NAME}),
    "audit": (
        AUDIT,
        {"actor": LONGEST_NAME, "action": LONGEST_ACTION, "target": LONGEST_TARGET, "reason": LONGEST_REASON},
    ),
    "queue": ("INSERT INTO tasks_queue (name) VALUES (%s)", {"name": LONGEST_NAME}),
    "lock": (LOCK, {"name": LONGEST_NAME, "owner": LONGEST_NAME}),
    "waiter": (WAITER, {"name": LONGEST_NAME, "owner": LONGEST_NAME}),
    "run": ("INSERT INTO tasks_commandrun (name, argv) VALUES (%s, '{}')", {"name": LONGEST_NAME}),
    "expected": ("INSERT INTO tasks_expectedcommand (name, every) VALUES (%s, '1 h')", {"name": LONGEST_NAME}),
    "worker": ("INSERT INTO tasks_worker (id, hostname, pid) VALUES (%s, 'h', 1)", {"id": LONGEST_NAME}),
}


@pytest.mark.parametrize(("table", "column"), [(table, column) for table in TABLES for column in TABLES[table][1]])
def test_the_tables_keep_exactly_what_python_reads(table, column):
    statement, limits = TABLES[table]

    def insert(value: str) -> str:
        return refused_by_sql(statement, *(value if name == column else f"plain {len(value)}" for name in limits))

    for control in CONTROLS:
        assert "_readable" in insert(f"a{control}b")
    assert "_readable" in insert("é" * (limits[column] + 1))
    for kept in (HARMLESS, "é" * limits[column]):
        assert insert(kept) == ""


def test_a_row_that_is_there_cannot_take_such_a_name_either():
    task = rows.ready()
    with pytest.raises(IntegrityError):
        Task.objects.filter(pk=task.pk).update(queue_name="mail\nall is well")


class TestTheDemosQueues:
    """Whatever is in them goes with the demo, so people put nothing there; its own director does."""

    @pytest.mark.parametrize("queue", ["demo-", "demo-x", "demo-reports"])
    def test_nobody_puts_a_task_there_by_hand(self, queue):
        task = rows.ready()
        with pytest.raises(Unreadable, match="queue of the demo"):
            operations.edit([task.pk], ANNA, Settings(queue_name=queue))
        with pytest.raises(Unreadable, match="queue of the demo"):
            operations.enqueue(nothing.module_path, ANNA, queue_name=queue)
        for argv in (
            ("edit_tasks", task.pk, "--set-queue", queue),
            ("enqueue_task", nothing.module_path, "--queue", queue),
        ):
            outcome = run(*argv)
            assert (outcome.status, "queue of the demo" in outcome.stderr) == (2, True)
        assert "belongs to the demo" in refused_by_sql(ENQUEUE, "a.b", queue, None)
        assert list(Task.objects.values_list("pk", "queue_name")) == [(task.pk, "default")]

    def test_nor_by_a_task_that_is_declared_there(self):
        outcome = run("enqueue_task", "dashboard.tasks.nap", "--args", "[0]")
        assert (outcome.status, "queue of the demo" in outcome.stderr) == (1, True)
        assert run("enqueue_task", "dashboard.tasks.nap", "--args", "[0]", "--queue", "default").status == 0

    def test_other_names_are_nobodys(self):
        task = rows.ready()
        assert operations.edit([task.pk], ANNA, Settings(queue_name="my-demo-x")).done == [task.pk]


class TestRowsOfEarlierVersions:
    NAME = "mail\nREADY 0\x1b[2J"

    @pytest.fixture(autouse=True)
    def planted(self):
        with old_rows.unchecked():
            for key in ("key\n1", "key\t1", "key?1", None):
                rows.ready(queue_name=self.NAME, ordering_key=key, run_after=timezone.now() - timedelta(hours=1))
            Queue.objects.create(name=self.NAME, paused=True, recovery="ask")

    def test_a_name_forges_no_line_of_a_report(self):
        outcome = run("queue_status", "--max-ready-age", "0")
        assert outcome.status == 3
        [line] = [line for line in outcome.stdout.splitlines() if "mail" in line]
        assert line.startswith(r"mail\nREADY 0\x1b[2J")
        assert line.endswith("paused")
        assert not any(line.startswith("READY 0") for line in (outcome.stdout + outcome.stderr).splitlines())
        assert self.NAME in [queue["name"] for queue in run("queue_status", "--json").data["queues"]]
        Queue.objects.all().delete()  # nobody needs to look at a paused one
        told = run("show_attention").stdout
        assert r"mail\nREADY 0" in told
        assert not any(line.startswith("READY 0") for line in told.splitlines())
