"""`import_tasks` on tables that the other queues' own packages have made and filled."""

import base64
import io
import os
import pickle
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from tasks.framework.declaration import PostgresTask
from tasks.models import Intervention, Schedule, Task
from tests.commands import Outcome, run
from tests.databases import ROOT
from tests.tasks import handlers, rows
from tests.tasks.importing.fill import LATER
from tests.tasks.importing.packages import filled

ECHO, ADD, NOTHING = (task.module_path for task in (handlers.echo, handlers.add, handlers.nothing))
SHOP = ("--map", f"shop.send={ECHO}", "--map", f"shop.deliver={ECHO}")

NAME_ARGUMENT = "UPDATE procrastinate_jobs SET args = jsonb_build_object(%s::text, 'v') WHERE lock IS NOT NULL"
ORDER_IS_LOCKED = """
SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted
    AND classid::bigint = hashtext('rowlock:order:' || current_schema())::bigint & 4294967295
    AND objid::bigint = hashtext('v') & 1023)
"""


@pytest.fixture(scope="module")
def theirs(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), filled("celery_beat", "django_q2", "django_tasks_db", "procrastinate"):
        yield


@pytest.fixture(autouse=True)
def _on_the_path(theirs: None, db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path TO public, theirs")


def imported(source: str, *options: object) -> Outcome:
    return run("import_tasks", "--from", source, *SHOP, "--json", *options)


def reasons(outcome: Outcome) -> set[tuple[str, str]]:
    """The reasons why rows stay, in their first words, by the last word of the function's name."""
    return {(left["function"].rpartition(".")[2], left["reason"][:24]) for left in outcome.data["left"]}


def options(outcome: Outcome) -> set[tuple[str, str]]:
    return {(each["function"].rpartition(".")[2], each["option"]) for each in outcome.data["options"]}


def calls(**conditions: object) -> list[tuple[list[object], dict[str, object]]]:
    return list(Task.objects.filter(**conditions).order_by("run_after", "id").values_list("args", "kwargs"))


def test_celery_beat():
    outcome = imported("celery-beat", "--yes", "--reason", "we move")
    assert (outcome.status, outcome.data["imported"]) == (1, 1)
    assert sorted(outcome.data["schedules"]) == ["later", "nightly", "off", "sync"]
    assert reasons(outcome) == {
        ("echo", "it follows the sun"),
        ("echo", "its day of the month and"),
        ("echo", "its interval is not of w"),
        ("echo", "its arguments are no JSO"),
        ("unknown", "no handler declares it"),
        ("add", "its handler does not tak"),
    }
    assert options(outcome) == {("echo", "headers"), ("echo", "priority")}
    nightly, later, sync, off = (Schedule.objects.get(name=name) for name in ("nightly", "later", "sync", "off"))
    assert (nightly.cron, nightly.timezone, nightly.args, nightly.queue_name, nightly.ends_at) == (
        "30 3 * * 1-5", "Europe/Berlin", ["x"], "reports", LATER,
    )  # fmt: skip
    assert later.next_at == datetime(2100, 1, 4, 2, 30, tzinfo=UTC)  # Monday, after the start
    assert (sync.every_seconds, sync.kwargs, sync.priority) == (600, {"value": 1}, None)
    assert timezone.now() < sync.next_at < timezone.now() + timedelta(minutes=11)
    assert (sync.next_at.minute % 10, sync.next_at.second) == (0, 7), "it keeps the phase of its last run"
    assert off.paused
    assert [(task.run_after, task.args) for task in Task.objects.all()] == [(LATER, [7])]


def test_django_q2(settings):
    settings.TIME_ZONE = "Europe/Berlin"  # as in the project of the tables
    outcome = imported("django-q2", "--yes")
    assert (outcome.status, outcome.data["imported"], len(outcome.data["schedules"])) == (1, 3, 6)
    assert reasons(outcome) == {
        ("shop", "it runs, or its worker d"),
        ("echo", "it begins a chain: its l"),
        ("echo", "its arguments cannot be "),
        ("deliver", "its arguments cannot be "),
        ("echo", "its day is not in every "),
        ("echo", "it ends after a number o"),
    }
    assert "<class 'decimal.Decimal'>" in outcome.stdout
    assert options(outcome) == {("deliver", "group"), ("deliver", "hook"), ("echo", "cluster")}
    assert calls() == [([1], {"second": 2}), ([["a", "tuple"]], {}), (["once"], {})]
    assert Task.objects.get(args=["once"]).run_after == LATER
    times = {row.name: (row.cron or row.every_seconds, row.args, row.kwargs) for row in Schedule.objects.all()}
    named = {name: times.pop(name) for name in ("daily", "minutes", "quarterly", "cron")}
    assert named == {
        "daily": ("30 13 * * *", [1], {}),
        "minutes": (300, [], {"value": 2}),
        "quarterly": ("30 13 1 1,4,7,10 *", [], {}),
        "cron": ("*/5 * * * *", [], {}),
    }
    assert sorted(times.values(), key=str) == [
        ("30 * * * *", ["written"], {}), ("30 13 * * 5", [], {"value": "by hand"}),
    ]  # fmt: skip
    assert Schedule.objects.get(name="minutes").next_at == LATER


def test_a_pickle_of_django_q2_is_read_and_never_obeyed(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    def payload(task: object) -> str:
        return base64.urlsafe_b64encode(pickle.dumps(task)).decode().strip("=") + ":0:unsigned"

    packed = base64.urlsafe_b64encode(zlib.compress(pickle.dumps({"func": ECHO, "args": (5,), "kwargs": {}})))
    payloads = [
        payload({"func": ECHO, "args": (Trap(),), "kwargs": {}}),
        payload({"func": os.system, "args": ("true",), "kwargs": {}}),
        payload(["no task"]),
        "nonsense",
        f".{packed.decode()}:0:unsigned",
    ]
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_q_ormq")
        cursor.execute("DELETE FROM django_q_schedule")
        cursor.executemany(
            "INSERT INTO django_q_ormq (key, payload, lock) VALUES ('shop', %s, now())", [[text] for text in payloads]
        )
    outcome = imported("django-q2", "--yes")
    assert reasons(outcome) == {
        ("echo", "its arguments cannot be "),
        ("system", "no handler declares it"),
        ("shop", "its payload cannot be re"),
    }
    assert calls() == [([5], {})]
    assert not (tmp_path / "sprung").exists()


def test_django_tasks_db():
    outcome = imported("django-tasks-db", "--yes")
    assert (outcome.status, outcome.data["imported"]) == (1, 4)
    assert reasons(outcome) == {("unknown", "no handler declares it"), ("send", "it runs, or its worker d")}
    assert calls(queue_name="default") == [(["first"], {}), (["second"], {}), (["third"], {})]
    later = Task.objects.get(queue_name="mail")
    assert (later.kwargs, later.priority, later.run_after) == ({"value": "later"}, 5, LATER)
    waiting = Task.objects.get(args=["first"])
    assert waiting.run_after == waiting.created_at < timezone.now()


def test_procrastinate():
    outcome = imported("procrastinate", "--yes")
    assert (outcome.status, outcome.data["imported"]) == (1, 5)
    assert reasons(outcome) == {
        ("add", "its handler does not tak"),
        ("unknown", "no handler declares it"),
        ("echo", "it runs, or its worker d"),
        ("nothing", "its times are in code, n"),
    }
    assert options(outcome) == {("echo", "priority beyond 100"), ("echo", "attempts")}
    first, second, later = (Task.objects.get(kwargs={"value": value}) for value in ("first", "second", "later"))
    assert (first.queue_name, first.priority, first.unique_while) == ("mail", 7, "a")
    assert first.unique_key.startswith("import:procrastinate:")
    assert (second.ordering_key, second.unique_key, second.unique_while) == ("account 1", "only one", "q")
    assert (later.priority, later.run_after) == (100, LATER)
    assert first.pk < second.pk < later.pk, "ids keep the order"


SOURCES = pytest.mark.parametrize("source", ["celery-beat", "django-q2", "django-tasks-db", "procrastinate"])


@SOURCES
def test_a_dry_run_lists_the_same_and_changes_nothing(source):
    listed = imported(source, "--dry-run")
    assert (Task.objects.count(), Schedule.objects.count(), Intervention.objects.count()) == (0, 0, 0)
    assert imported(source, "--yes").data == listed.data


@SOURCES
def test_a_second_import_brings_nothing_even_if_all_has_run_and_is_gone(source):
    first = imported(source, "--yes")
    Task.objects.all().delete()
    Schedule.objects.all().delete()
    second = imported(source, "--yes")
    number = first.data["imported"] + len(first.data["schedules"])
    assert (second.data["imported"], second.data["schedules"], second.data["already"]) == (0, [], number)
    assert (Task.objects.count(), Schedule.objects.count()) == (0, 0)
    assert second.data["left"] == first.data["left"]


def test_each_row_is_in_the_audit_and_the_import_once():
    imported("procrastinate", "--yes", "--reason", "we move")
    marks = Intervention.objects.filter(action="enqueue", target__startswith="import:procrastinate:")
    assert (marks.count(), set(marks.values_list("reason", "source"))) == (5, {("we move", "command")})
    assert Intervention.objects.get(action="import source=procrastinate").target == "table:tasks_task"


def test_a_task_with_the_same_unique_key_is_kept():
    rows.ready(unique_key="only one", unique_while="q")
    outcome = imported("procrastinate", "--yes")
    assert (outcome.data["imported"], outcome.data["duplicates"]) == (4, 1)
    assert not Task.objects.filter(kwargs={"value": "second"}).exists()
    assert imported("procrastinate", "--yes").data["already"] == 5


@pytest.mark.parametrize(
    ("declared", "name", "columns"),
    [
        (handlers.index_again, "document", {"unique_key": "v", "unique_while": "q", "ordering_key": "account 1"}),
        (handlers.by_account, "account", {"unique_key": "only one", "unique_while": "q", "ordering_key": "v"}),
        (handlers.at_most_three, "account", {"concurrency_key": "v", "concurrency_limit": 3, "ordering_key": None}),
    ],
)
def test_what_the_handler_declares_goes_before_what_the_source_says(declared, name, columns):
    import_for(declared, name)
    assert Task.objects.filter(kwargs={name: "v"}).values(*columns).get() == columns


def import_for(declared: PostgresTask, name: str) -> None:
    """Import from Procrastinate, for this handler, with "v" as the argument `name` of the job that has a lock."""
    with connection.cursor() as cursor:
        cursor.execute(NAME_ARGUMENT, [name])
    imported("procrastinate", "--yes", "--map", f"{ECHO}={declared.module_path}")


def test_the_order_of_commits_holds_beside_an_import():
    import_for(handlers.by_account_and_commit, "account")
    with connection.cursor() as cursor:
        cursor.execute(ORDER_IS_LOCKED)
        assert cursor.fetchone() == (True,), "others with this key wait until the chunk has committed"


def test_a_schedule_of_the_same_name_is_left_alone():
    Schedule.objects.create(name="nightly", task_path=NOTHING, every_seconds=60)
    outcome = imported("celery-beat", "--yes")
    assert ("echo", "another schedule has its") in reasons(outcome)
    assert Schedule.objects.get(name="nightly").task_path == NOTHING


class TestAsking:
    def answer(self, monkeypatch: pytest.MonkeyPatch, text: str) -> Outcome:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return run("import_tasks", "--from", "django-tasks-db", *SHOP)

    def test_the_list_comes_before_the_question(self, monkeypatch):
        outcome = self.answer(monkeypatch, "y\n")
        assert outcome.stdout == "4 tasks and 0 schedules imported.\n"
        listed, question = outcome.stderr.split("Import 4 tasks and 0 schedules? [y/N] ")
        assert "shop.unknown" in listed
        assert "no handler declares it" in listed
        assert question.strip() == "SystemExit" or "2 rows left." in question

    @pytest.mark.parametrize(("text", "status"), [("n\n", 1), ("\n", 1), ("", 2)])
    def test_without_a_yes_nothing_is_imported(self, monkeypatch, text, status):
        assert self.answer(monkeypatch, text).status == status
        assert not Task.objects.exists()


def test_a_path_that_nobody_declares_is_refused_at_once():
    outcome = run("import_tasks", "--from", "procrastinate", "--yes", "--map", f"{ADD}=no.such")
    assert (outcome.status, "No task is registered as 'no.such'" in outcome.stderr) == (1, True)
    assert run("import_tasks", "--from", "procrastinate", "--map", "no pair").status == 2
    assert run("import_tasks", "--from", "procrastinate", "jobs.csv").status == 2


def test_without_the_tables_it_says_where_it_looked():
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path TO public")
    outcome = run("import_tasks", "--from", "procrastinate", "--dry-run")
    assert (outcome.status, "no table procrastinate_jobs on the search path (public)" in outcome.stderr) == (1, True)


def go_back(page: str, name: str) -> None:
    """Execute the statements of a page under `-- go back to NAME`."""
    text = (ROOT / "docs/coming" / f"{page}.md").read_text()
    [statements] = re.findall(rf"-- go back to {name}\n(.*?)```", text, re.DOTALL)
    with connection.cursor() as cursor:
        cursor.execute(statements)


def end(**conditions: object) -> None:
    """One imported task has run here."""
    now = timezone.now() + timedelta(seconds=1)  # after the transaction of the import began, which is this one
    task = Task.objects.get(**conditions)
    Task.objects.filter(pk=task.pk).update(status="COMPLETED", attempt=1, started_at=now, finished_at=now)


def theirs_now(statement: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_back_to_procrastinate_goes_only_what_has_not_begun():
    jobs = (
        "SELECT args ->> 'value' FROM procrastinate_jobs WHERE status = 'todo' AND task_name LIKE '%%echo' ORDER BY 1"
    )
    imported("procrastinate", "--yes")
    assert [value for (value,) in theirs_now(jobs)] == ["again", "first", "later", "second"]
    end(kwargs={"value": "first"})
    end(kwargs={"value": "second"})  # has a queueing_lock
    go_back("procrastinate", "Procrastinate")
    assert [value for (value,) in theirs_now(jobs)] == ["again", "later"]


def test_a_job_of_procrastinate_stays_whose_key_another_task_had():
    rows.completed(unique_key="only one", unique_while="q")
    imported("procrastinate", "--yes")
    go_back("procrastinate", "Procrastinate")
    assert theirs_now("SELECT count(*) FROM procrastinate_jobs WHERE queueing_lock = 'only one'") == [(1,)]


def test_back_to_django_tasks_db_goes_only_what_has_not_begun():
    results = (
        "SELECT args_kwargs -> 'args' ->> 0 FROM django_tasks_database_dbtaskresult WHERE status = 'READY' ORDER BY 1"
    )
    imported("django-tasks-db", "--yes")
    end(args=["second"])
    go_back("django-tasks-db", "django-tasks-db")
    assert [value for (value,) in theirs_now(results)] == ["first", "third", None, None]


def test_back_to_django_q2_goes_what_has_not_begun_and_schedules_go_on(settings):
    settings.TIME_ZONE = "Europe/Berlin"
    imported("django-q2", "--yes")
    number = theirs_now("SELECT count(*) FROM django_q_ormq")[0][0]
    end(args=[1])
    end(args=["once"])
    ticked = LATER + timedelta(days=1)
    Schedule.objects.filter(name="daily").update(next_at=ticked)
    go_back("django-q2", "django-q2")
    assert theirs_now("SELECT count(*) FROM django_q_ormq") == [(number - 1,)]
    assert theirs_now("SELECT count(*) FROM django_q_schedule WHERE name = 'once'") == [(0,)]
    times = "SELECT name, next_run FROM django_q_schedule WHERE name IN ('daily', 'quarterly') ORDER BY name"
    assert theirs_now(times) == [("daily", ticked), ("quarterly", Schedule.objects.get(name="quarterly").next_at)]


def test_back_to_celery_beat_it_goes_on_after_the_last_tick():
    imported("celery-beat", "--yes")
    ticked = timezone.now()
    Schedule.objects.filter(name="sync").update(last_at=ticked)
    end(args=[7])  # the clocked one
    before = theirs_now("SELECT last_update FROM django_celery_beat_periodictasks")
    go_back("celery", "celery-beat")
    runs = "SELECT name, last_run_at FROM django_celery_beat_periodictask WHERE last_run_at IS NOT NULL"
    assert theirs_now(runs) == [("sync", ticked)]
    assert theirs_now("SELECT enabled FROM django_celery_beat_periodictask WHERE name = 'once'") == [(False,)]
    assert theirs_now("SELECT enabled FROM django_celery_beat_periodictask WHERE name = 'nightly'") == [(True,)]
    assert theirs_now("SELECT last_update FROM django_celery_beat_periodictasks") > before, "beat reads them again"
