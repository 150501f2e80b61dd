"""`import_tasks --from csv`: a file of jobs with the columns of Solid Queue's table."""

import csv
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import Task
from tests.commands import Outcome, run
from tests.databases import ROOT
from tests.tasks import handlers

pytestmark = pytest.mark.django_db
COLUMNS = [
    "id", "queue_name", "class_name", "arguments", "priority", "active_job_id", "scheduled_at", "finished_at",
    "concurrency_key", "created_at", "updated_at",
]  # fmt: skip


def job(*arguments: object, **columns: object) -> dict[str, object]:
    stored = {"job_class": "SendJob", "job_id": "x", "arguments": arguments, "executions": 0}
    defaults = {
        "id": 1, "queue_name": "mail", "class_name": "SendJob", "priority": 0, "created_at": "2026-01-02 03:04:05.6",
    }  # fmt: skip
    return {**defaults, "arguments": json.dumps(stored), **columns}


@pytest.fixture
def imported(tmp_path: Path):
    def imported(*jobs: dict[str, object], map_to: str = handlers.nothing.module_path) -> Outcome:
        file = tmp_path / "jobs.csv"
        with file.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, COLUMNS)
            writer.writeheader()
            writer.writerows(jobs)
        return run("import_tasks", "--from", "csv", file, "--map", f"SendJob={map_to}", "--yes", "--json")

    return imported


def test_jobs_keep_their_arguments_times_queue_and_order(imported):
    keywords = {"to": {"name": "x", "_aj_symbol_keys": ["name"]}, "_aj_ruby2_keywords": ["to"]}
    jobs = (
        job(1, "two", keywords, id=7, priority=10),
        job(id=8, scheduled_at="2100-01-01 12:30:00 UTC", active_job_id="0a1b"),
        job(id=9, finished_at="2026-01-01 00:00:00"),
        job(id=10, arguments='{"plain": 1}', concurrency_key="SendJob/1"),
    )
    outcome = imported(*jobs)
    assert (outcome.status, outcome.data["imported"], outcome.data["left"]) == (0, 3, [])
    assert [(each["option"], each["count"]) for each in outcome.data["options"]] == [("concurrency_key", 1)]
    first, later, plain = Task.objects.order_by("id")
    assert (first.args, first.kwargs) == ([1, "two"], {"to": {"name": "x"}})
    assert (first.queue_name, first.priority, first.unique_key) == ("mail", -10, "import:csv:7")
    assert first.run_after == first.created_at == datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)
    assert (later.run_after, later.unique_key) == (datetime(2100, 1, 1, 12, 30, tzinfo=UTC), "import:csv:0a1b")
    assert plain.kwargs == {"plain": 1}
    assert imported(*jobs).data["already"] == 3


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (job({"_aj_globalid": "gid://shop/User/1"}), "an argument is an object of Ruby"),
        (job([{"_aj_serialized": "ActiveJob::Serializers::TimeSerializer"}]), "an argument is an object of Ruby"),
        (job(arguments="{"), "its arguments are no JSON"),
        (job(arguments='"text"'), "its arguments are no JSON"),
        (job(scheduled_at="soon"), "it cannot be read"),
        (job(class_name="OtherJob"), "no handler declares it"),
        (job(queue_name="demo-mail"), "its queue cannot be named so"),
        (job("nul \0"), "its arguments cannot be stored as JSON"),
    ],
)
def test_what_cannot_be_carried_over_is_named(imported, columns, reason):
    outcome = imported(columns)
    assert (outcome.status, [left["reason"] for left in outcome.data["left"]]) == (1, [reason])
    assert not Task.objects.exists()


def test_an_id_that_the_file_has_twice_is_imported_once(imported):
    assert imported(job(1), job(2)).data["imported"] == 1


def test_arguments_must_fit_the_handler(imported):
    [left] = imported(job(1), map_to=handlers.add.module_path).data["left"]
    assert (left["count"], "missing a required argument: 'second'" in left["example"]) == (1, True)


@pytest.mark.parametrize(("text", "said"), [("id,class_name\n1,SendJob\n", "no column arguments"), ("\xff", "")])
def test_a_file_that_is_none(tmp_path, text, said):
    file = tmp_path / "jobs.csv"
    file.write_bytes(text.encode("latin-1"))
    for path in (file, tmp_path / "gone.csv"):
        outcome = run("import_tasks", "--from", "csv", path, "--dry-run")
        assert outcome.status == 1
        assert said in outcome.stderr or path != file
    assert run("import_tasks", "--from", "csv").status == 2


def test_the_way_back_deletes_there_what_has_begun_here(imported):
    """The page's own statements; `\\copy` is COPY for psql."""
    imported(job(id=7), job(id=8, active_job_id="0a1b"), job(id=9))
    begun = {"status": "COMPLETED", "attempt": 1, "finished_at": timezone.now()}
    Task.objects.exclude(unique_key="import:csv:9").update(**begun)
    page = (ROOT / "docs/coming/solid-queue.md").read_text()
    [ids] = re.findall(r"begun here\n\\copy (.*) TO 'begun.csv' CSV HEADER", page)
    [(create, delete)] = re.findall(r"Solid Queue\n(CREATE .*;)\n\\copy begun FROM .*\n(DELETE .*;)", page)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE solid_queue_jobs (id bigint, active_job_id text)")
        cursor.execute("INSERT INTO solid_queue_jobs VALUES (7, NULL), (8, '0a1b'), (9, NULL), (10, '7x')")
        with cursor.copy(f"COPY {ids} TO STDOUT CSV HEADER") as file:
            written = b"".join(file)
        cursor.execute(create)
        with cursor.copy("COPY begun FROM STDIN CSV HEADER") as file:
            file.write(written)
        cursor.execute(delete)
        cursor.execute("SELECT id FROM solid_queue_jobs ORDER BY id")
        assert cursor.fetchall() == [(9,), (10,)]
