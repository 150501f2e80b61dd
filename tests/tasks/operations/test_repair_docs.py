"""docs/repair.md is read and checked: its commands do what they are said to do, and its addresses are there."""

import re
import shlex

import pytest
from django.conf import settings
from django.urls import resolve

from tasks import conf
from tasks.models import Task
from tasks.tasks import BULK_QUEUE
from tests.commands import run
from tests.tasks import rows

pytestmark = pytest.mark.django_db
TEXT = (settings.BASE_DIR / "docs" / "repair.md").read_text()
COMMANDS = [shlex.split(line)[2:] for line in re.findall(r"`(python manage\.py [^`]+)`", TEXT)]
CHARGE = "shop.tasks.charge"


@pytest.mark.parametrize("argv", [argv for argv in COMMANDS if argv[0] != "enqueue_task"], ids=" ".join)
def test_each_command_does_something_and_is_not_refused(argv):
    rows.failed(task_path=CHARGE), rows.ready(), rows.ready(queue_name="slow")
    rows.processing(rows.dead_worker())
    run("quarantine_tasks", rows.ready(task_path="x").pk)
    before = set(Task.objects.values_list("id", "version"))
    assert run(*argv, "--json").status == 0
    assert set(Task.objects.values_list("id", "version")) != before


def test_every_action_of_the_list_has_its_command():
    assert {argv[0] for argv in COMMANDS} == {
        "requeue_tasks", "edit_tasks", "quarantine_tasks", "cancel_tasks", "recover_tasks", "enqueue_task",
    }  # fmt: skip


def test_the_filters_are_those_of_the_commands():
    named = set(re.findall(r"`(--[a-z-]+)`", TEXT.split("share their filters")[1].split("## ")[0])) - {"--dry-run"}
    with_help = run("requeue_tasks", "--help").stdout
    assert all(option in with_help for option in named)
    assert len(named) == 8


def test_addresses_variables_and_queues_are_real():
    assert resolve("/admin/tasks/task/why/default/").url_name == "tasks_task_why"
    assert conf.SETTINGS["BURST"].variable in TEXT
    assert f"queue `{BULK_QUEUE}`" in TEXT
