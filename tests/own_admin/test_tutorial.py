"""docs/tutorial.md, word for word, from an empty folder with the wheel.

Each block with a file's name is written and each console block is run, in their order. Three things come from here:
`pip` is uv, the server of `createdb` is the test's, and the port of `runserver` is a free one.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Browser, expect
from psycopg.conninfo import conninfo_to_dict

from tests import databases
from tests.browser.conftest import Visitor
from tests.databases import ROOT, QueueDatabase
from tests.own_admin import combinations
from tests.own_admin.conftest import environment_of
from tests.own_admin.projects import Project, free_port

pytestmark = pytest.mark.browser
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
[SQL] = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (at the end of )?(\S+\.py)\n")
# The newest Django of this machine's combinations.
NEWEST = max(combinations.here())
PIP = f"""#!/bin/sh
exec {sys.executable!r} -m uv pip --offline --quiet "$@" --python "$VIRTUAL_ENV"
"""
PASSWORD = "choose-one"


@pytest.fixture
def shop(run_folder: Path, wheel: Path, tmp_path: Path) -> Iterator[Project]:
    """An empty folder with the wheel, in a shell with an environment, PostgreSQL's programs and its server."""
    folder, tools = tmp_path / "empty", tmp_path / "tools"
    folder.mkdir()
    tools.mkdir()
    shutil.copy(wheel, folder)
    pip = tools / "pip"
    pip.write_text(PIP)
    pip.chmod(0o755)
    place = environment_of(NEWEST, run_folder, wheel)
    installed = combinations.installation("18")
    assert installed
    database = QueueDatabase(databases.named(os.environ["TEST_DATABASE_URL"], "shop"))
    where = conninfo_to_dict(database.url)
    names = (("PGHOST", "host"), ("PGPORT", "port"), ("PGUSER", "user"), ("PGPASSWORD", "password"))
    variables = {name: str(where[key]) for name, key in names if key in where}
    variables["PATH"] = os.pathsep.join(map(str, (tools, place / "bin", os.environ["PATH"], installed / "bin")))
    project = Project(folder, place, database, variables=variables)
    with project.exits:
        yield project
    database.close()
    databases.drop(database.url)


def follow(shop: Project) -> str:
    """Do what the page says, block by block; the address of its web server."""
    base = ""
    for kind, text in BLOCK.findall(PAGE):
        if kind == "python":
            write(shop.folder, text)
        elif text.startswith("("):
            base = go_on(shop, text) or base
        else:
            lines = "\n".join(line.removeprefix("$ ") for line in text.splitlines())
            shop.run("bash", "-eu", "-c", lines)
    return base


def write(folder: Path, text: str) -> None:
    named = FILE.match(text)
    assert named, f"A block without a file: {text}"
    path = folder / named.group(2)
    before = path.read_text() if named.group(1) else ""
    path.write_text(before + text)


def go_on(shop: Project, text: str) -> str:
    """Start the command of another terminal; the address if it is the web server."""
    [command] = re.findall(r"^\$ python (manage\.py \w+)$", text, re.MULTILINE)
    port = free_port()
    arguments = ["--noreload", f"127.0.0.1:{port}"] if command.endswith("runserver") else []
    argv = [str(shop.environment / "bin" / "python"), *command.split(), *arguments]
    process = shop.launch(command.split()[1], argv)
    return shop.answering(process, port) if arguments else ""


def test_the_page_is_followed_to_a_shop_that_works(shop: Project, browser: Browser) -> None:
    base = follow(shop)
    assert importlib.util.find_spec("rowlock") is None, "the page installs into the shop's environment alone"
    tasks = {row.task_path: row for row in shop.database.rows("SELECT * FROM tasks_task ORDER BY id")}
    paid = shop.database.wait_for(tasks["store.tasks.take_payment"].id, "COMPLETED", seconds=120)
    assert paid.return_value == "purchase 1 is paid"
    counted = shop.database.wait_for(tasks["store.tasks.count_unpaid"].id, "COMPLETED", seconds=120)
    assert counted.return_value in (0, 1)
    assert shop.database.value("SELECT version FROM store_purchase") > 1, "the trigger raises the version"

    context = browser.new_context(locale="en-GB")
    visitor = Visitor(context, base)
    page = visitor.open("/admin/")
    page.locator("input[name=username]").fill("anna")
    page.locator("input[name=password]").fill(PASSWORD)
    page.locator("input[type=submit], button[type=submit]").last.click()
    page.get_by_role("link", name=re.compile("^Tasks")).first.click()
    expect(page.locator("#task-rows")).to_contain_text(re.compile("take_payment.*COMPLETED", re.DOTALL))
    page.get_by_role("link", name="Schedules").first.click()
    expect(page.locator("body")).to_contain_text("store.tasks.count_unpaid")
    page.get_by_role("link", name="All models").first.click()
    page.get_by_role("link", name="Purchases").first.click()
    expect(page.locator("#result_list")).to_contain_text("Free")
    page.get_by_role("button", name="Pack paid purchases…").click()
    page.locator("form.confirm button[data-action=run-pattern]").click()
    page.get_by_text("COMPLETED").first.wait_for(timeout=120_000)
    assert shop.database.value("SELECT is_packed FROM store_purchase")
    with contextlib.closing(psycopg.connect(shop.database.url, autocommit=True)) as session:
        session.execute(SQL)
        page = visitor.open("/admin/store/purchase/")
        expect(page.locator("#result_list")).to_contain_text(f"session {session.info.backend_pid}")
    assert visitor.complaints == []
    context.close()


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) < 1000
