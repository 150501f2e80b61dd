"""docs/adopting.md: the sidecar is set up, used and removed by the very statements on the page."""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.core.management import get_commands, load_command_class

from tests import databases
from tests.databases import ROOT, QueueDatabase

PAGE = (ROOT / "docs" / "adopting.md").read_text()
SQL = dict(re.findall(r"^```sql\n-- (.*?)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
PYTHON = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
LOCKING = (ROOT / "docs" / "locking.md").read_text()
TUTORIAL = dict(re.findall(r"^```python\n# (parcels/\S+)\n(.*?)^```", LOCKING, re.MULTILINE | re.DOTALL))
ROLES = {"rowlock": "rowlock_of_docs", "shop": "shop_of_docs"}  # roles belong to the server, not to the database

OURS = """
SELECT kind, name FROM (
    SELECT 'relation' AS kind, relname AS name, relnamespace AS namespace FROM pg_class
    WHERE relname ~ '^(rowlock|tasks|orders|dashboard)_'
    UNION ALL SELECT 'function', proname, pronamespace FROM pg_proc WHERE proname ~ '^rowlock'
    UNION ALL SELECT 'type', typname, typnamespace FROM pg_type WHERE typname ~ '^_?(rowlock|tasks|orders|dashboard)_'
    UNION ALL SELECT 'trigger', tgname, 0 FROM pg_trigger WHERE tgname ~ '^rowlock'
    UNION ALL SELECT 'schema', nspname, 0 FROM pg_namespace WHERE nspname = 'rowlock'
) AS found ORDER BY 1, 2
"""
VERSION_TRIGGER = """
CREATE TRIGGER rowlock_version BEFORE UPDATE ON parcels FOR EACH ROW EXECUTE FUNCTION rowlock_raise_version()
"""
DJANGOS = """
SELECT (SELECT count(*) FROM django_migrations WHERE app IN ('tasks', 'orders', 'dashboard')) AS migrations,
    (SELECT count(*) FROM django_content_type WHERE app_label IN ('tasks', 'orders', 'dashboard')) AS types,
    (SELECT count(*) FROM auth_group) AS groups
"""


def statements(name: str, database: str = "shop") -> str:
    """One block of the page, for roles and a database that no other test has."""
    text = SQL[name].replace("IN DATABASE shop", f"IN DATABASE {database}")
    text = text.replace("ON DATABASE shop", f"ON DATABASE {database}")
    text = re.sub(r"(ROLE|AUTHORIZATION|OWNED BY|TO) rowlock\b", rf"\1 {ROLES['rowlock']}", text)
    return re.sub(r"TO shop\b", f"TO {ROLES['shop']}", text)


def as_role(url: str, name: str) -> str:
    """The address of the same database for another role."""
    parts = urlsplit(url)
    query = f"{parts.query}&" if parts.query else ""
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{ROLES[name]}:choose%20one@{host}", query=query.rstrip("&")))


@pytest.fixture
def shop():
    """An empty database of a shop with its own tables, and a role for its program."""
    database = QueueDatabase(databases.named(os.environ["TEST_DATABASE_URL"], "shop_of_docs"))
    databases.drop(database.url)
    databases.create(database.url)
    database.rows(f"CREATE ROLE {ROLES['shop']} LOGIN PASSWORD 'choose one'")
    database.rows("CREATE TABLE django_migrations (app text, name text)")
    database.rows("CREATE TABLE parcels (id bigserial PRIMARY KEY, phone text, has_arrived bool, is_notified bool)")
    database.rows("INSERT INTO parcels (phone, has_arrived, is_notified) VALUES ('555-1', true, false)")
    try:
        yield database
    finally:
        database.close()
        databases.drop(database.url)
        with psycopg.connect(databases.named(database.url, "postgres"), autocommit=True) as server:
            for role in ROLES.values():
                server.execute(f"DROP ROLE IF EXISTS {role}")


@pytest.fixture
def handlers(tmp_path: Path) -> Path:
    """The apps of the page, as files."""
    files = {**TUTORIAL, **PYTHON}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in [path.parent, *path.parent.parents]:
            if folder == tmp_path:
                break
            (folder / "__init__.py").touch()
    return tmp_path


def manage(url: str, *arguments: str, apps: Path) -> str:
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "ROWLOCK_APPS": "handlers,parcels",
        "ROWLOCK_LAB": "1",
        "PYTHONPATH": str(apps),
    }
    argv = [sys.executable, "manage.py", *arguments]
    return subprocess.check_output(argv, cwd=ROOT, env=environment, text=True, timeout=60)


def test_a_sidecar_from_its_role_to_its_end(shop, handlers):
    shop.connection.execute(statements("the role and its schema", "shop_of_docs"))
    sidecar = as_role(shop.url, "rowlock")
    manage(sidecar, "migrate", "-v0", apps=handlers)
    manage(sidecar, "check", "--database", "default", apps=handlers)
    assert shop.value("SELECT count(*) FROM public.django_migrations") == 0

    shop.connection.execute(statements("what your program needs"))
    with psycopg.connect(as_role(shop.url, "shop"), autocommit=True) as program:
        for statement in SQL["from any language"].split(";\n"):
            assert not statement.strip() or program.execute(statement).fetchone()[0]
    assert "claimed 1, completed 1" in manage(sidecar, "run_worker", "--burst", apps=handlers)
    assert shop.value("SELECT return_value FROM rowlock.tasks_task") == "paid 4711"

    shop.connection.execute(statements("what the sidecar may do with it", "shop_of_docs"))
    report = json.loads(manage(sidecar, "notify_parcels", "--json", apps=handlers))
    assert report["done"] == 1
    assert shop.value("SELECT is_notified FROM parcels")
    shop.connection.execute(statements("what the lab needs", "shop_of_docs"))
    argv = ["run_pattern", "notify_parcels", "--workers", "1", "--items", "5", "--work-ms", "0", "--json"]
    assert json.loads(manage(sidecar, *argv, apps=handlers))["is_clean"]
    assert shop.value("SELECT count(*) FROM parcels") == 1
    manage(sidecar, "migrate", "--check", "-v0", apps=handlers)

    shop.connection.execute(statements("uninstall a sidecar"))
    assert shop.rows(OURS) == []
    assert shop.value("SELECT count(*) FROM pg_roles WHERE rolname = %s", ROLES["rowlock"]) == 0
    assert shop.value("SELECT count(*) FROM parcels") == 1


def test_nothing_is_left_in_a_shared_schema(template_url):
    with databases.copy_of(template_url) as database:
        database.rows("CREATE TABLE parcels (version integer)")
        database.rows(VERSION_TRIGGER)
        assert len(database.rows(OURS)) > 50
        database.connection.execute(SQL["uninstall from a shared schema"])
        assert database.rows(OURS) == []
        assert tuple(database.rows(DJANGOS)[0]) == (0, 0, 0)
        assert database.value("SELECT count(*) FROM parcels") == 0


@pytest.mark.parametrize("page", ["adopting.md", "demo.md"])
def test_every_command_on_the_page_is_one(page):
    text = (ROOT / "docs" / page).read_text()
    lines = re.findall(r"python manage\.py ([^`#\n]+)|`((?:run_worker|configure_queue) [^`]*)`", text)
    assert len(lines) > 3
    for line in filter(None, itertools.chain.from_iterable(lines)):
        name, *arguments = shlex.split(line.replace("NAME", "x").replace("Q", "q").replace(" N", " 1"))
        load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(arguments)
