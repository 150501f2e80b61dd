"""The wheel: what is installed by pip migrates, serves its pages and keeps its state outside the checkout."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import databases
from tests.databases import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?==([^\s;]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
WANTED = re.findall(r"^([\w-]+)", (ROOT / "tests/requirements/run.in").read_text(), re.MULTILINE)
PAGES = ["/admin/", "/admin/tasks/task/", "/admin/orders/order/", "/admin/ops/locks/"]
VISIT = """
import django, pathlib, sys
django.setup()
import dashboard, orders, tasks
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client
for module in (dashboard, orders, tasks):
    assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), module.__file__
client = Client()
assert client.get("/healthz").content == b"ok"
client.force_login(get_user_model().objects.get(username="admin"), "django.contrib.auth.backends.ModelBackend")
for path in sys.argv[1:]:
    print(path, client.get(path).status_code)
"""

# Any project may have an app `tasks`: the plugin is not looked up there.
PLUGIN = """
from importlib.metadata import entry_points
[plugin] = [found for found in entry_points(group="pytest11") if found.name == "rowlock"]
print(plugin.value, plugin.load().Fixtures.__module__)
"""
LEFT_ALONE = """
def test_it(pytestconfig):
    assert pytestconfig.pluginmanager.hasplugin("rowlock")
    assert not pytestconfig.pluginmanager.hasplugin("rowlock-fixtures")
"""


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; its dependencies are those that the tests run with."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": folder, "platbase": folder}))
    paths = [path for path in sys.path if path.endswith("-packages")]
    (packages / "dependencies.pth").write_text("\n".join(paths))
    python = folder / "bin" / "python"
    argv = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", python, wheel]
    installed = subprocess.run(argv, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    return folder


@pytest.fixture
def url():
    url = databases.named(os.environ["TEST_DATABASE_URL"], "of_the_wheel")
    databases.create(url)
    yield url
    databases.drop(url)


def test_installed_it_migrates_and_serves_its_pages(environment, url, tmp_path):
    def run(*argv: str) -> str:
        variables = {
            **os.environ,
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "ALLOWED_HOSTS": "testserver",
            "ADMIN_PASSWORD": "of this test",
        }
        done = subprocess.run(argv, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    rowlock = str(environment / "bin" / "rowlock")
    run(rowlock, "prepare_site", "-v0")
    run(rowlock, "check", "--database", "default")
    run(rowlock, "run_worker", "--burst", "-v0")
    assert run(str(environment / "bin" / "python"), "-c", PLUGIN).split() == ["rowlock.pytest_plugin"] * 2
    visited = run(str(environment / "bin" / "python"), "-c", VISIT, *PAGES)
    assert visited.splitlines() == [f"{path} 200" for path in PAGES]
    assert (tmp_path / "var" / "secret_key").exists()
    assert not list(environment.rglob("secret_key"))


def test_a_project_with_an_app_tasks_of_its_own_keeps_its_tests(environment, tmp_path):
    files = {"tasks/__init__.py": "", "tasks/testing.py": "", "test_it.py": LEFT_ALONE}
    files["settings.py"] = (
        "INSTALLED_APPS = ['tasks']\nDATABASES = {'default': {'ENGINE': 'django.db.backends.postgresql'}}"
    )
    files["pytest.ini"] = "[pytest]\nDJANGO_SETTINGS_MODULE = settings\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    argv = [environment / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTEST_"))}
    done = subprocess.run(argv, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_every_file_of_the_checkouts_packages_and_templates(wheel):
    packages = {path for app in ("dashboard", "orders", "tasks") for path in files(app)}
    templates = {f"dashboard/{path}" for path in files("templates")}
    assert packages
    assert templates
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if not name.startswith("rowlock-")}
    ours = {"rowlock/manage.py", "rowlock/gunicorn.conf.py", "rowlock/pytest_plugin.py"}
    assert carried == packages - {"tasks/pytest_plugin.py"} | templates | ours


def files(folder: str) -> set[str]:
    found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path) for path in found if "__pycache__" not in path.parts}


def test_its_types_are_for_others_too(wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert {f"{app}/py.typed" for app in ("dashboard", "orders", "tasks")} <= set(archive.namelist())


def test_its_ranges_allow_what_is_pinned_and_leave_nothing_out():
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {"alerts", "api", "embedded", "encryption", "otel", "redis"}
    required = [Requirement(text) for text in PROJECT["dependencies"] + [*chain.from_iterable(extras.values())]]
    ours = [requirement for requirement in required if requirement.name != "opentelemetry-api"]  # of tests
    assert {requirement.name for requirement in ours} == set(WANTED)
    for requirement in ours:
        assert requirement.specifier.contains(PINS[requirement.name]), requirement


def test_the_environment_of_the_tests_has_the_backend_that_the_project_names():
    [backend] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert Requirement(backend).specifier.contains(importlib.metadata.version("hatchling"))
