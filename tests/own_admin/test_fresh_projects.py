"""The wheel in projects that `django-admin startproject` makes, by two lines of settings: every Django, Python, server.

Each project is migrated and checked, runs a task in a worker, opens every page, and takes a killed worker's task back.
Per version of Django a person does the same in a browser; once in an admin site of the project's own.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import Visitor
from tests.databases import QueueDatabase
from tests.own_admin import combinations
from tests.own_admin.combinations import Combination
from tests.own_admin.conftest import Workshop
from tests.own_admin.projects import PASSWORD, Project, kill
from tests.waiting import wait_until

HERE = combinations.here()
IN_A_BROWSER = list({one.django: one for one in reversed(HERE)}.values())
VISIT = "import django; django.setup(); import visit; visit.main()"
OWN_SITE = """
from dashboard.site import RowlockAdminSiteMixin
from django.contrib import admin
from django.urls import path
from shop.models import Product


class BackOffice(RowlockAdminSiteMixin, admin.AdminSite):
    site_header = "Back office"


site = BackOffice(name="back_office")
site.register(Product)
urlpatterns = [path("back-office/", site.urls)]
"""
# Warnings that a project gets which has done nothing about it yet: no limits on logins, no content security policy.
EXPECTED = {"rowlock.W006", "rowlock.W008"}
BLOCKED = "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"

Tried = tuple[Project, dict[str, Any]]


@pytest.fixture(scope="module")
def tried(workshop: Workshop, request: pytest.FixtureRequest) -> dict[Combination, Future[Tried]]:
    """The project of each chosen combination and what it answered, in the order of the tests."""
    chosen = [item.callspec.params.get("one") for item in request.session.items if hasattr(item, "callspec")]
    return {one: workshop.pool.submit(attempt, workshop, one) for one in HERE if one in chosen}


def attempt(workshop: Workshop, one: Combination) -> Tried:
    project = workshop.project(one, f"p{one.django}_{one.python}".replace(".", "_"))
    project.create()
    worker = project.start("run_worker", "--concurrency", "2")
    (project.folder / "visit.py").write_text((Path(__file__).parent / "visit.py").read_text())
    given = (project.admin, str(worker.pid), PASSWORD)
    answers = json.loads(project.run("python", "-c", VISIT, *given, DJANGO_SETTINGS_MODULE="mysite.settings"))
    kill(worker)
    return project, answers


@pytest.mark.parametrize("one", HERE, ids=str)
def test_it_migrates_runs_a_task_opens_every_page_and_recovers(one, tried):
    project, answers = tried[one].result(timeout=280)
    assert answers["versions"] == [one.django, one.python]
    assert {path: status for path, status in answers["pages"].items() if status != 200} == {}
    assert len(answers["pages"]) > 25
    assert f"{project.admin}shop/product/" in answers["pages"]
    assert answers["missing"] == []
    assert answers["assets"] > 3
    assert answers["result"] == "Hello, Anna"
    assert answers["ordering_key"] == "greet:Anna"
    assert answers["recovered"]
    assert answers["status"] == "READY"
    assert set(answers["checks"]) == EXPECTED


@pytest.fixture
def window(browser: Browser) -> Iterator[Visitor]:
    """A window without a page of the project before, which would refresh itself and could abort ours."""
    context = browser.new_context(locale="en-GB")
    yield Visitor(context, "")
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("one", IN_A_BROWSER, ids=lambda one: f"django{one.django}")
def test_a_person_does_it_all_in_a_browser(one, tried, window):
    project, _answers = tried[one].result(timeout=280)
    drive(window, project)


@pytest.mark.browser
def test_a_person_does_it_all_in_the_projects_own_site(workshop, window):
    project = workshop.project(IN_A_BROWSER[0], "back_office", "/back-office/")
    project.create(urls=OWN_SITE)
    person = ("--noinput", "--username", "root", "--email", "root@example.com")
    project.manage("createsuperuser", *person, DJANGO_SUPERUSER_PASSWORD=PASSWORD)
    drive(window, project)
    assert "Back office" in window.page.locator("#site-name, #header").first.inner_text()


def drive(visitor: Visitor, project: Project) -> None:
    """Log in, enqueue, kill the worker, take its task back, end a blocker."""
    worker = project.start("run_worker")
    visitor.base = project.serve() + project.admin
    page = visitor.open("")
    page.locator("input[name=username]").fill("root")
    page.locator("input[name=password]").fill(PASSWORD)
    page.locator("input[type=submit], button[type=submit]").last.click()
    page.locator("#overview").wait_for()

    page = visitor.open("tasks/task/enqueue/")
    page.get_by_role("link", name="shop.tasks.hang").click()
    page.locator("button[data-action=enqueue]").click()
    page.get_by_text("Enqueued").first.wait_for()
    task_id = project.database.value("SELECT max(id) FROM tasks_task")
    project.database.wait_for(task_id, "PROCESSING", seconds=120)
    kill(worker)

    page = visitor.open("ops/stale/")
    page.locator(f"#stale-{task_id} button[data-action=recover]").click()
    page.get_by_role("textbox", name="Reason").fill("its machine is gone")
    page.locator("form.confirm button[data-action=recover]").click()
    page.get_by_text(f"Take back: done for #{task_id}.").wait_for()
    assert project.database.task(task_id).status == "READY"
    end_a_blocker(visitor, project.database)
    assert visitor.complaints == []


def end_a_blocker(visitor: Visitor, database: QueueDatabase) -> None:
    with contextlib.closing(psycopg.connect(database.url, application_name="nightly")) as blocker:
        blocker.execute("LOCK TABLE shop_product IN ACCESS EXCLUSIVE MODE")
        victim = threading.Thread(target=database.rows, args=("SELECT count(*) FROM shop_product",))
        victim.start()
        with psycopg.connect(database.url, autocommit=True) as asking:
            wait_until(lambda: asking.execute(BLOCKED).fetchone())
        pid = blocker.info.backend_pid
        page: Page = visitor.open("ops/locks/")
        page.locator(f"#node-{pid} > .node button[data-action=terminate-backend]").click()
        page.locator("dialog[open] button[data-action=terminate-backend]").click()
        page.get_by_text(f"Backend {pid} was signalled.").wait_for()
        victim.join(60)
        assert not victim.is_alive()
