"""The commands on schedules: what they change, print as JSON, and refuse."""

import pytest

from tasks.models import Intervention, Schedule, Task
from tests.commands import run
from tests.tasks import handlers

pytestmark = pytest.mark.django_db
PATH = handlers.nothing.module_path
KEYS = {"name", "task_path", "cron", "every_seconds", "timezone", "paused", "next_at", "last_at"}


def add(*options: object, name: str = "nightly"):
    return run("add_schedule", name, PATH, *options)


def test_adding_shows_the_next_times_and_listing_shows_it():
    outcome = add("--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--missed", "once", "--args", "[1]")
    assert outcome.status == 0
    assert "Schedule nightly added: 30 2 * * * (Europe/Berlin)." in outcome.stdout
    assert outcome.stdout.count("\n  2") >= 5
    assert "02:30 occurs twice on this day: it runs at the first" in outcome.stdout
    row = Schedule.objects.get()
    assert (row.cron, row.timezone, row.missed, row.args) == ("30 2 * * *", "Europe/Berlin", "once", [1])
    listed = run("list_schedules", "--json").data["schedules"]
    assert (len(listed), listed[0].keys() >= KEYS, listed[0]["next_at"]) == (1, True, row.next_at.isoformat())
    assert {"prune-history", "prune-tasks"} <= set(run("list_schedules", "--json").data["off"])


def test_an_interval_and_a_dry_run():
    assert add("--every", "10m", "--dry-run").status == 0
    assert not Schedule.objects.exists()
    assert add("--every", "10m", "--paused", "--json").data["schedule"]["every_seconds"] == 600
    assert Schedule.objects.get().paused


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        ((), 2, "give --cron or --every"),
        (("--cron", "* * * * *", "--every", "1m"), 2, "not allowed with"),
        (("--every", "soon"), 2, "not a duration"),
        (("--cron", "61 * * * *"), 1, "is not a cron expression (Bad minute): write minute, hour"),
        (("--cron", "* * * * *", "--timezone", "Mars"), 1, "not a known time zone"),
        (("--every", "1m", "--missed", "some"), 2, "invalid choice"),
        (("--every", "1m", "--args", "{}"), 2, "not an array"),
        (("--every", "1m", "--priority", "101"), 2, "a priority"),
    ],
)
def test_what_cannot_be_added_says_why(options, status, text):
    outcome = add(*options)
    assert (outcome.status, text in outcome.stderr) == (status, True), outcome.stderr


def test_a_taken_name_and_unknown_ones_are_refused():
    add("--every", "1m")
    assert "nightly is taken" in add("--every", "1m").stderr
    for name in ("run", "pause", "resume", "delete"):
        outcome = run(f"{name}_schedule", "nightli")
        assert (outcome.status, "Did you mean nightly?" in outcome.stderr) == (1, True)
    assert "No task is registered" in run("add_schedule", "x", "no.such", "--every", "1m").stderr
    assert "page of its own" in run("add_schedule", "x", "tasks.tasks.prune_tasks", "--every", "1m").stderr


def test_editing_and_going_back():
    declared = {"cron": "0 1 * * *", "every_seconds": None, "timezone": "UTC", "missed": "skip", "overlap": "skip"}
    Schedule.objects.create(name=PATH, task_path=PATH, declared=declared, **declared)
    outcome = run("edit_schedule", PATH, "--every", "2h", "--overlap", "allow", "--json")
    assert (outcome.status, outcome.data["changed"]) == (0, True)
    assert outcome.data["schedule"]["overridden"] == ["cron", "every_seconds", "overlap"]
    assert "overridden: cron, every_seconds, overlap" in run("list_schedules").stdout
    assert run("edit_schedule", PATH, "--every", "2h", "--json").data["changed"] is False
    assert run("edit_schedule", PATH, "--declared", "--json").data["schedule"]["overridden"] == []
    assert run("edit_schedule", PATH).status == 2
    assert run("edit_schedule", PATH, "--declared", "--every", "1h").status == 2
    assert "declared in code" in run("delete_schedule", PATH).stderr


def test_pausing_running_resuming_and_deleting():
    add("--every", "1h")
    outcome = run("pause_schedule", "nightly", "--json", "--reason", "the archive is closed")
    assert outcome.data == {"schedule": "nightly", "paused": True, "changed": True}
    assert "paused by" in run("list_schedules").stdout
    task_id = run("run_schedule", "nightly", "--json").data["task_id"]
    assert Task.objects.get().pk == task_id
    assert run("resume_schedule", "nightly", "--json").data["changed"] is True
    assert run("resume_schedule", "nightly", "--json").data["changed"] is False
    assert run("delete_schedule", "nightly", "--json").data == {"schedule": "nightly", "deleted": True}
    actions = list(Intervention.objects.order_by("id").values_list("action", "target", "reason"))
    assert [action.split()[0] for action, *_ in actions] == ["add", "pause", "run", "resume", "delete"]
    assert {target for _, target, _ in actions} == {"schedule:nightly"}
    assert actions[1][2] == "the archive is closed"


def test_upkeep_that_is_off_is_resumed_like_any_other():
    assert run("resume_schedule", "prune-tasks", "--json").data["changed"] is True
    assert Schedule.objects.get().task_path == "tasks.tasks.prune_tasks"
    assert run("resume_schedule", "prune-tasks", "--json").data["changed"] is False


def test_an_end_can_be_set_and_taken_away():
    add("--every", "1h")
    run("edit_schedule", "nightly", "--ends-at", "2000-01-01T00:00:00+00:00")
    assert run("list_schedules", "--json").data["schedules"][0]["next_at"] is None
    run("edit_schedule", "nightly", "--ends-at", "never")
    assert run("list_schedules", "--json").data["schedules"][0]["next_at"] is not None
