"""The pytest plugin in an adopter's own test suite: a process with pytest-django, xdist and --reuse-db."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests import databases
from tests.databases import ROOT

NAME = "test_of_an_adopter"
FILES = {
    "settings.py": """
import os
import environ
DATABASES = {"default": {**environ.Env.db_url_config(os.environ["SERVER"]), "NAME": os.environ["NAME"]}}
DATABASES["default"]["TEST"] = {"NAME": os.environ["TEST_NAME"]}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.postgres", "tasks", "shop"]
import django
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")
TASKS = {"default": {"BACKEND": "tasks.backend.PostgresBackend"}}
SECRET_KEY, USE_TZ = "of this test", True
""",
    "shop/__init__.py": "",
    "shop/tasks.py": """
from tasks import task

@task(ordering_key=lambda account, amount: f"account:{account}")
def send_payout(account, amount):
    return amount

@task(every="1h")
def tidy_up():
    return "tidy"
""",
    "test_right.py": """
import pytest
from django.db import transaction
from django.test import TestCase, TransactionTestCase
from shop.tasks import send_payout, tidy_up
from tasks import lock, testing
from tasks.models import Worker

class BankIsAway(Exception): ...

def pay():
    with transaction.atomic():
        transaction.on_commit(lambda: send_payout.enqueue(4711, amount="1.00"))

@pytest.mark.django_db
def test_captured():
    with testing.captured_tasks() as tasks:
        pay()
    assert [(task.task_path, task.args, task.kwargs) for task in tasks] == [
        ("shop.tasks.send_payout", [4711], {"amount": "1.00"})]
    testing.assert_enqueued(send_payout, args=[4711], ordering_key="account:4711", among=tasks, count=1)

def test_eager(eager_tasks):
    send_payout.enqueue(1, 2)
    with testing.captured_tasks():
        pay()
    assert [result.return_value for result in eager_tasks] == [2, "1.00"]

def test_eager_on_a_commit(eager_tasks, transactional_db):
    pay()
    assert [result.return_value for result in eager_tasks] == ["1.00"]

@pytest.mark.django_db(transaction=True)
def test_time_goes_by():
    assert [result.return_value for result in testing.advance(hours=3.5)] == ["tidy"] * 3

@pytest.fixture(scope="class")
def nightly(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), lock("of the class", ttl=60):
        yield

@pytest.mark.django_db
class TestNothingLeft:
    def test_let_go_or_of_the_class_or_in_the_transaction(self, nightly):
        with lock("for a moment", ttl=60):
            Worker.objects.create(id="w1", hostname="here", pid=1)

class PayoutTests(TestCase):
    def test_failing(self):
        send_payout.enqueue(1, 2)
        with testing.failing(send_payout, BankIsAway("closed"), times=1):
            first, second = testing.run_all()
        assert "BankIsAway: closed" in first.errors[0].traceback and second.return_value == 2

class CommittedPayoutTests(TransactionTestCase):
    def test_due(self):
        Worker.objects.create(id="w2", hostname="here", pid=1)
        pay()
        assert [result.return_value for result in testing.run_due()] == ["1.00"]

def test_without_a_database():
    pass
""",
    "test_wrong.py": """
import os, subprocess, sys, time
import psycopg, pytest
from django.db import IntegrityError, connection
from django.test import TestCase
from tasks import lock
from tasks.models import Queue, Worker
from tasks.testing import NothingLeftBehind, leftovers

leftovers.PATIENCE_SECONDS = 0.3
kept = []
WORKER = "INSERT INTO tasks_worker (id, hostname, pid) VALUES ('gone', 'there', 7)"

@pytest.fixture(scope="module", autouse=True)
def at_last():
    yield
    for worker in kept:
        if isinstance(worker, subprocess.Popen):
            worker.terminate()
            worker.wait()

def connect():
    info = connection.connection.info
    kept.append(psycopg.connect(info.dsn, password=info.password))
    return kept[-1]

@pytest.mark.django_db(transaction=True)
def test_worker():
    env = {**os.environ, "NAME": connection.settings_dict["NAME"]}
    argv = [sys.executable, "-m", "django", "run_worker", "-v0"]
    kept.append(subprocess.Popen(argv, env=env))
    while not Worker.objects.filter(stopped_at=None, presence_epoch__isnull=False).exists():
        time.sleep(0.05)

@pytest.mark.django_db(transaction=True)
def test_nothing_behind_a_worker(): ...

@pytest.mark.django_db
def test_lock():
    kept.append(lock("nightly@all", ttl=60).acquire())

class Tests(TestCase):
    def test_lock_of_a_case(self):
        kept.append(lock("of a case", ttl=60).acquire())

    def test_nothing_of_a_case(self): ...

class PlainTests(NothingLeftBehind, TestCase):
    def test_plain_lock(self):
        kept.append(lock("plain", ttl=60).acquire())

    def test_plain_nothing(self): ...

@pytest.mark.django_db
def test_row():
    with connect() as other:
        other.execute(WORKER)

@pytest.mark.django_db
def test_open_transaction_behind_a_broken_one():
    connect().execute("SELECT FROM tasks_task LIMIT 1")
    with pytest.raises(IntegrityError):
        Queue.objects.bulk_create([Queue(name="twice"), Queue(name="twice")])

@pytest.mark.django_db
def test_advisory_lock():
    other = connect()
    other.autocommit = True
    other.execute("SELECT pg_advisory_lock(rowlock_lock_key('by hand'))")

@pytest.mark.django_db
def test_nothing_at_the_end(): ...
""",
}
RIGHT = {
    "test_captured",
    "test_eager",
    "test_eager_on_a_commit",
    "test_time_goes_by",
    "test_let_go_or_of_the_class_or_in_the_transaction",
    "test_failing",
    "test_due",
    "test_without_a_database",
    "test_nothing_behind_a_worker",
    "test_nothing_of_a_case",
    "test_plain_nothing",
    "test_nothing_at_the_end",
}
# The test, and the name of what it left.
WRONG = {
    "test_worker": r"worker \w+ \(pid \d+ on ",
    "test_lock": r"named lock nightly@all \(",
    "test_lock_of_a_case": r"named lock of a case \(",
    "test_plain_lock": r"named lock plain \(",
    "test_row": r"worker gone \(pid 7 on there\)",
    "test_open_transaction_behind_a_broken_one": r"open transaction of session \d+ \(locks on tasks_task\)",
    "test_advisory_lock": r"advisory lock of session \d+ \(",
}
SUMMARY = re.compile(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", re.MULTILINE)


@pytest.fixture(scope="module")
def adopter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an adopter's project; its test databases are dropped at the end."""
    folder = tmp_path_factory.mktemp("adopter")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nDJANGO_SETTINGS_MODULE = settings\n")
    yield folder
    for suffix in ("", "_gw0", "_gw1"):
        databases.drop(databases.named(os.environ["TEST_DATABASE_URL"], f"{NAME}{suffix}"))


def run(folder: Path, *argv: str, name: str = NAME) -> tuple[int, str]:
    """Exit status and output of a Python module in the adopter's folder."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))}
    variables |= {
        "SERVER": os.environ["TEST_DATABASE_URL"],
        "NAME": "postgres",
        "TEST_NAME": name,
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
    }
    done = subprocess.run(
        [sys.executable, "-m", *argv], cwd=folder, env=variables, capture_output=True, text=True, timeout=200
    )
    return done.returncode, done.stdout + done.stderr


def databases_of_the_adopter() -> list[tuple[str, int]]:
    with psycopg.connect(os.environ["TEST_DATABASE_URL"]) as server:
        found = "SELECT datname, oid::bigint FROM pg_database WHERE starts_with(datname, %s) ORDER BY 1"
        return list(server.execute(found, [NAME]).fetchall())


def pytest_of(folder: Path, *argv: str) -> tuple[set[str], set[str], str]:
    """The names of the tests that pass, and of those that fail, with the output."""
    options = ("-p", "tasks.pytest_plugin", "-p", "no:cacheprovider", "-rA", "-n", "2", "--dist", "loadfile")
    _, output = run(folder, "pytest", *options, "--reuse-db", *argv)
    outcomes = SUMMARY.findall(output)
    bad = {name for outcome, name in outcomes if outcome != "PASSED"}
    return {name for _, name in outcomes} - bad, bad, output


def test_each_test_that_leaves_something_fails_with_its_name_and_no_other(adopter):
    passed, failed, output = pytest_of(adopter)
    assert failed == set(WRONG), output
    assert passed == RIGHT, output
    for name, left in WRONG.items():
        assert re.search(rf"^E? *- {left}", output, re.MULTILINE), (name, output)

    kept = databases_of_the_adopter()
    assert len(kept) == 2
    passed, failed, output = pytest_of(adopter, "-n", "1", "test_right.py", "test_wrong.py::Tests")
    assert failed == {"test_lock_of_a_case"}, output
    assert len(passed) == 9
    assert databases_of_the_adopter() == kept

    status, output = run(adopter, "django", "test", "--keepdb", "test_wrong", name=kept[0][0])
    assert status == 1
    assert re.findall(r"^(?:FAIL|ERROR): (\w+)", output, re.MULTILINE) == ["test_plain_lock"], output
    assert "named lock plain (" in output


IMPORTED = (
    "import sys, tasks.pytest_plugin; print([name for name in sys.modules if name.startswith(('django', 'tasks'))])"
)


def test_importing_the_plugin_imports_nothing_of_django():
    imported = subprocess.check_output([sys.executable, "-c", IMPORTED], cwd=ROOT, text=True)
    assert imported.strip() == "['tasks', 'tasks.pytest_plugin']"
