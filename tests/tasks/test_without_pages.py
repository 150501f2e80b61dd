"""A project that installs `tasks` and nothing else of ours: its own admin shows the queue, and every list opens."""

import json
import os
import subprocess
import sys

import pytest
from django.db import connections

from tests.commands import database_url
from tests.databases import ROOT
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
SETTINGS = """
import environ
SECRET_KEY, USE_TZ, ROOT_URLCONF, ALLOWED_HOSTS = "x", True, "plain_urls", ["testserver"]
CONTRIB = ["admin", "auth", "contenttypes", "sessions", "messages", "postgres"]
INSTALLED_APPS = [*(f"django.contrib.{name}" for name in CONTRIB), "tasks"]
MIDDLEWARE = [f"django.contrib.{name}" for name in (
    "sessions.middleware.SessionMiddleware", "auth.middleware.AuthenticationMiddleware",
    "messages.middleware.MessageMiddleware")]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
    "context_processors": [f"django.{name}" for name in (
        "template.context_processors.request", "contrib.auth.context_processors.auth",
        "contrib.messages.context_processors.messages")]}}]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
TASKS = {"default": {"BACKEND": "tasks.backend.PostgresBackend"}}
STATIC_URL = "static/"
"""
URLS = """
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.urls import path
from tasks.admin import LockAwareAdmin, PatternAdmin
admin.site.register(Permission, type("Both", (PatternAdmin, LockAwareAdmin), {}))
urlpatterns = [path("admin/", admin.site.urls)]
"""
OPEN = """
import django, json, sys
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
call_command("check", stdout=sys.stderr)
client = Client()
client.force_login(User.objects.create_superuser("root"))
pages = {path: client.get(path) for path in sys.argv[1:]}
assert {page.status_code for page in pages.values()} == {200}, pages
print(json.dumps({path: page.content.decode() for path, page in pages.items()}))
"""


def opened(folder, *paths: str) -> dict[str, str]:
    """What each of these pages says in such a project, which has the test's database."""
    (folder / "plain_settings.py").write_text(SETTINGS)
    (folder / "plain_urls.py").write_text(URLS)
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "plain_settings",
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
    }
    connections.close_all()
    done = subprocess.run(
        [sys.executable, "-c", OPEN, *paths], env=environment, cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_list_opens_and_shows_no_argument(tmp_path):
    task = rows.ready(kwargs={"password": "hunter2"})
    row = f"/admin/tasks/task/{task.pk}/change/"
    lists = [f"/admin/tasks/{name}/" for name in ("task", "queue", "worker", "attempt", "refusedwrite", "intervention")]
    pages = opened(tmp_path, "/admin/", "/admin/auth/permission/", row, *lists)
    assert task.task_path in pages["/admin/tasks/task/"]
    assert task.task_path in pages[row]
    assert "hunter2" not in "".join(pages.values())
    assert "column-holder" in pages["/admin/auth/permission/"]
