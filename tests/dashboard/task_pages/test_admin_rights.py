"""Who sees and does what: the groups and their rights. Every address with every role is in test_security_matrix.py."""

import os
import subprocess
import sys

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import Group, Permission
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.test import Client

from tasks.models import Attempt, Intervention, RefusedWrite, Worker
from tests import databases
from tests.people import client_of
from tests.processes import HANDLERS_APP
from tests.tasks import rows

pytestmark = pytest.mark.django_db

OPERATING = {"requeue_task", "recover_task", "cancel_task", "pause_queue", "configure_queue"}
FIRST_PAGES = ["Tasks", "Queues", "Workers", "Audit", "All models"]


def rights_of(group: str) -> set[str]:
    return set(Group.objects.get(name=group).permissions.values_list("codename", flat=True))


def test_every_group_sees_every_table_of_ours():
    models = [model for label in ("tasks", "orders") for model in apps.get_app_config(label).get_models()]
    seeing = {f"view_{model._meta.model_name}" for model in models if model._meta.managed}
    for group in ("Viewers", "Operators", "Lock administrators", "Account managers"):
        assert seeing <= rights_of(group)


def test_groups_are_made_although_the_last_app_has_no_models(template_url):
    """Django sends `post_migrate` only for apps with models; handlers may be all that the last one has."""
    with databases.copy_of(template_url) as database:
        database.rows("DELETE FROM auth_group_permissions")
        database.rows("DELETE FROM auth_group")
        environment = {**os.environ, "DATABASE_URL": database.url, "ROWLOCK_APPS": HANDLERS_APP}
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=databases.ROOT, env=environment, check=True)
        made = dict(database.rows("SELECT name, (SELECT count(*) FROM auth_group_permissions) > 0 FROM auth_group"))
    assert made == dict.fromkeys(("Viewers", "Operators", "Lock administrators", "Account managers"), True)


def test_viewers_see_and_nothing_else():
    assert all(codename.startswith("view_") for codename in rights_of("Viewers"))


@pytest.mark.parametrize("group", ["Operators", "Lock administrators"])
def test_operators_may_do_what_pages_offer(group):
    assert rights_of(group) >= OPERATING


def test_nobody_may_edit_the_rows_of_the_queue():
    codenames = Permission.objects.filter(content_type__app_label="tasks").values_list("codename", flat=True)
    assert not [name for name in codenames if name.startswith(("add_", "change_", "delete_"))]


def test_migrating_again_gives_back_rights_and_takes_none():
    group = Group.objects.get(name="Operators")
    group.permissions.remove(Permission.objects.get(codename="cancel_task"))
    group.permissions.add(Permission.objects.get(codename="add_user"))
    call_command("migrate", verbosity=0)
    assert {"cancel_task", "add_user"} <= rights_of("Operators")


def test_the_lists_say_which_right_is_missing():
    page = client_of().get("/admin/tasks/task/")
    assert page.status_code == 403
    assert "You lack the right tasks.view_task" in page.text
    assert "Viewers" in page.text


@pytest.mark.parametrize("model", ["worker", "attempt", "refusedwrite", "intervention"])
def test_what_was_recorded_can_be_seen_and_not_changed(model):
    task = rows.failed()
    Worker.objects.create(id="w7f", hostname="host", pid=41234)
    Attempt.objects.create(id=1, task=task, number=1, worker_id="w7f", outcome="failed")
    RefusedWrite.objects.create(id=1, task_id=task.pk, worker_id="w7f", expected_version=1, intent="fail")
    Intervention.objects.create(id=1, actor="anna", source="page", action="cancel", target=f"task:{task.pk}")
    client = client_of("Viewers")
    row = "w7f" if model == "worker" else "1"
    assert client.get(f"/admin/tasks/{model}/").status_code == 200
    page = client.get(f"/admin/tasks/{model}/{row}/change/")
    assert page.status_code == 200
    assert 'name="_save"' not in page.text
    superuser = client_of(username="root", is_superuser=True)
    assert superuser.post(f"/admin/tasks/{model}/{row}/change/", {}).status_code == 403
    assert superuser.post(f"/admin/tasks/{model}/{row}/delete/", {"post": "yes"}).status_code == 403


def test_the_navigation_offers_what_may_be_opened():
    viewer, nobody = client_of("Viewers").get("/admin/"), client_of(username="otto").get("/admin/")
    labels = [entry["label"] for entry in viewer.context["navigation"]]
    assert [label for label in labels if label in FIRST_PAGES] == FIRST_PAGES
    assert [entry["label"] for entry in nobody.context["navigation"]] == ["Overview", "All models"]


def test_the_root_leads_to_the_admin():
    assert Client().get("/")["Location"] == "/admin/"


def test_a_browser_that_looks_for_an_icon_keeps_its_token():
    """It asks beside the first page, without the cookie that the page brings: a second one would undo that."""
    answer = Client().get("/favicon.ico")
    assert finders.find(answer["Location"].removeprefix(settings.STATIC_URL)) is not None
    assert not answer.cookies
