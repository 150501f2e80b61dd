"""Our pages in a project as `django-admin startproject` makes it, without our middleware, settings and orders.

The project runs in a process of its own, on the test's database. Two admin sites have our pages: the default one, and
one of the project's own, under another name and path.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import database_url
from tests.databases import ROOT
from tests.test_house import WITH_ORDERS, modules

pytestmark = pytest.mark.django_db(transaction=True)

SETTINGS = """
import environ
INSTALLED_APPS = ["dashboard.apps.RowlockAdminConfig", "tasks", "dashboard", *INSTALLED_APPS[1:], "shop"]
TASKS = {"default": {"BACKEND": "tasks.backend.PostgresBackend", "OPTIONS": {"MAX_ATTEMPTS": 3, "LAB": True}}}
DATABASES = {"default": {**environ.Env().db_url("DATABASE_URL"), "ATOMIC_REQUESTS": True}}
ALLOWED_HOSTS = ["testserver"]
"""
ADMIN = """
from django.contrib import admin
from django.contrib.contenttypes.models import ContentType
from dashboard.site import RowlockAdminSiteMixin

class ShopAdminSite(RowlockAdminSiteMixin, admin.AdminSite):
    site_header = "Shop"

site = ShopAdminSite(name="ops")
site.register(ContentType)
admin.site.register(ContentType)
"""
URLS = """
from django.contrib import admin
from django.conf.urls.i18n import i18n_patterns
from django.urls import include, path
from shop.admin import site
urlpatterns = [path("back/office/", site.urls), path("control/", admin.site.urls)]
urlpatterns = [*i18n_patterns(path("", include(urlpatterns)), prefix_default_language=False)]
"""
VISIT = """
import importlib, json, re, sys
import django
django.setup()
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.core import checks
from django.db import connection
from django.test import Client
from dashboard import project
from django.utils import translation
from tasks import conf
from tasks.support import addresses

for name in sys.argv[1:]:
    importlib.import_module(name)
client = Client()
client.force_login(User.objects.create_superuser("root"))

def visit(start, most):
    seen, coming, out = {}, [start], set()
    while coming and len(seen) < most:
        url = coming.pop(0)
        if url not in seen:
            answer = client.get(url)
            seen[url] = answer.status_code
            for link in re.findall(r'(?:href|action|formaction|hx-get|data-url)="(/[^"#?]*)', answer.content.decode()):
                (coming.append if link.startswith(start) else out.add)(link)
            # Some need a POST, one the line that it is about.
            coming[:] = [link for link in coming if not re.search("logout|attention|language", link)]
    wrong = {url: status for url, status in seen.items() if status not in (200, 405)}
    return {"wrong": wrong, "out": sorted(link for link in out if link[:8] != "/static/"), "number": len(seen)}

def in_two_languages():
    found = []
    for language in ("en-us", "ru"):
        with translation.override(language):
            found.append(addresses.address("admin:ops_locks"))
    return found

home = client.get("/back/office/").content.decode()
lists = client.get("/back/office/contenttypes/contenttype/").content.decode()
refused = Client()
refused.force_login(User.objects.create_user("viewer", is_staff=True))
answers = {
    "visits": [visit("/back/office/", 100), visit("/control/", 8)],
    "serious": [str(message) for message in checks.run_checks() if message.level >= checks.ERROR],
    "warnings": sorted(message.id for message in checks.run_checks()),
    "scripts": [bool(finders.find(path)) for path in re.findall(r'src="/static/([^"]+)"', home)],
    "menu": ['class="pages"' in page and "Shop" in page for page in (home, lists)],
    "refusal": re.findall("You lack the right [a-z_.]*", refused.get("/control/ops/locks/").content.decode()),
    "expired": Client().get("/control/", headers={"HX-Request": "true"}).headers.get("HX-Redirect", ""),
    "offers_languages": 'class="languages"' in home,
    "languages": in_two_languages(),
    "attempts": conf.get("MAX_ATTEMPTS"),
    "command": project.manage("run_worker")[1:],
    "patterns": sorted(importlib.import_module("dashboard.lab.patterns").PATTERNS),
}
with connection.cursor() as cursor:
    cursor.execute("SHOW statement_timeout")
    answers["limit_left"] = cursor.fetchone()[0]
print(json.dumps(answers))
"""


@pytest.fixture
def answers(tmp_path: Path) -> dict:
    """The answers of the project, asked once."""
    subprocess.run([sys.executable, "-m", "django", "startproject", "shop", tmp_path], check=True, cwd=tmp_path)
    (tmp_path / "shop" / "admin.py").write_text(ADMIN)
    (tmp_path / "shop" / "urls.py").write_text(URLS)
    with (tmp_path / "shop" / "settings.py").open("a") as file:
        file.write(SETTINGS)
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
    }
    own = {"dashboard/settings.py", "dashboard/urls.py", "dashboard/wsgi.py", "dashboard/guesses.py"}
    names = (str(path.relative_to(ROOT)) for path in modules("dashboard") if "migrations" not in path.parts)
    others = [name.removesuffix(".py").replace("/", ".") for name in names if name not in WITH_ORDERS | own]
    others = [name for name in others if not name.endswith("__main__")]
    argv = [sys.executable, "-W", "ignore", "-c", VISIT, *others]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=270)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_page_opens_at_each_site_and_leads_to_that_site_alone(answers):
    own, default = answers["visits"]
    assert own["wrong"] == default["wrong"] == {}
    assert own["out"] == ["/"]  # "View site" of a stock site
    assert default["out"] == []
    assert own["number"] > 25
    assert default["number"] == 8
    assert answers["serious"] == []
    assert answers["warnings"] == ["rowlock.W006", "rowlock.W008"]
    assert answers["menu"] == [True, True]
    assert answers["scripts"] != []
    assert all(answers["scripts"])
    assert answers["refusal"] == ["You lack the right dashboard.view_backend"]
    assert answers["expired"].startswith("/control/login/")
    assert not answers["offers_languages"]  # without LocaleMiddleware a choice would have no effect
    assert answers["languages"] == ["/control/ops/locks/", "/ru/control/ops/locks/"]
    assert answers["attempts"] == 3
    assert answers["command"][0].endswith("manage.py")
    assert "account_unsafe" not in answers["patterns"]
    assert "skip_locked_claim" in answers["patterns"]
    assert answers["limit_left"] == "0"
