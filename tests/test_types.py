"""Check with mypy and pyright what a type checker says of good and bad calls in a project that uses Rowlock."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.databases import ROOT

# A line marked so is an error, every other line is none.
MARK = "# error"
CALLS = """
from tasks import TaskContext, lock, task
from tasks.contrib.celery import shared_task


@task
def pay(account_id: int, *, amount: str = "1") -> int:
    return account_id


@task(max_attempts=3, ordering_key=lambda account_id: f"account:{account_id}")
async def pay_in_order(account_id: int) -> str:
    return ""


@shared_task(autoretry_for=(OSError,))
def send(account_id: int) -> int:
    return account_id


@shared_task(acks_late=True)  # error
def late() -> None: ...


def as_celery() -> None:
    send.delay(1)
    send.delay("1")  # error
    value: int = send(1)
    text: str = send(1)  # error


@task(takes_context=True)
def import_rows(context: TaskContext, total: int) -> None: ...


@task(takes_context=True)  # error
def without_context() -> None: ...


def enqueue() -> None:
    pay.enqueue(1, amount="2")
    pay.enqueue("1")  # error
    pay.enqueue(1, "2")  # error
    pay.enqueue(1, amuont="2")  # error
    pay.enqueue()  # error
    pay_in_order.enqueue(1)
    pay_in_order.enqueue(1, 2)  # error
    import_rows.enqueue(5)
    import_rows.enqueue("5")  # error
    pay.using(priority=3, ordering_key="k", unique_key="k").enqueue(1)
    pay.using(ordering_key="k").enqueue("1")  # error
    pay.using(priorty=3)  # error
    pay.enqueue_many([((1,), {})])
    pay(1)  # error


async def enqueue_in_a_coroutine() -> None:
    await pay.aenqueue(1)
    await pay.aenqueue()  # error
    await pay.using(queue_name="q").aenqueue(account_id="1")  # error


async def read() -> None:
    value: int = pay.get_result("1").return_value
    value = (await pay.aget_result("1")).return_value
    value = pay.enqueue(1).return_value
    text: str = pay.enqueue(1).return_value  # error
    text = (await pay.aget_result("1")).return_value  # error


@lock("report", ttl=30)
def report(day: int) -> str:
    return ""


def locked() -> None:
    report(1)
    report("1")  # error
    with lock("report", ttl=30) as held:
        fence: int | None = held.fence
        fence = held.fense  # error


@lock("report", ttl=30)
async def report_in_a_coroutine(day: int) -> str:
    return ""


async def locked_in_a_coroutine() -> None:
    text: str = await report_in_a_coroutine(1)
    text = await report_in_a_coroutine("1")  # error
    async with lock("report", ttl=30) as held:
        fence: int | None = held.fence
        fence = held.fense  # error
"""


@pytest.fixture
def project(tmp_path):
    """A folder with one module, which finds Rowlock as an installed package."""
    (tmp_path / "calls.py").write_text(CALLS)
    options = {"include": ["calls.py"], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(options))
    return tmp_path


def marked():
    return [number for number, line in enumerate(CALLS.splitlines(), 1) if line.endswith(MARK)]


def output(project, *argv):
    command = [sys.executable, "-m", *argv]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=240).stdout


def test_mypy_finds_the_bad_calls_and_no_others(project):
    said = output(project, "mypy", "--follow-imports=silent", "--cache-dir", os.devnull, "calls.py")
    found = {int(number) for number in re.findall(r"^calls\.py:(\d+): error:", said, re.MULTILINE)}
    assert sorted(found) == marked(), said


def test_pyright_finds_the_bad_calls_and_no_others(project):
    said = output(project, "basedpyright", "--pythonpath", sys.executable, "--outputjson", "-p", ".")
    errors = [found for found in json.loads(said)["generalDiagnostics"] if found["severity"] == "error"]
    assert sorted({error["range"]["start"]["line"] + 1 for error in errors}) == marked(), said
