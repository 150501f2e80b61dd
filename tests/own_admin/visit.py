"""A visit inside a fresh project: it runs a task, opens every page, kills the worker and takes its task back.

`main` prints one JSON object. This file imports nothing of the tests: the project's environment has only the wheel.
"""

import io
import json
import os
import pathlib
import re
import signal
import sys
import time

import django
from django.contrib.auth import get_user_model
from django.contrib.staticfiles import finders
from django.core import checks
from django.core.management import call_command
from django.test import Client
from shop.tasks import greet, hang

import dashboard
import tasks
from tasks.models import Task

LINK = re.compile(r"""(?:href|hx-get)="([^"?#]+)""")
ASSET = re.compile(r"""(?:href|src)="/static/([^"?#]+)""")
# They end the session, need a POST, or need the line that they are about.
SPECIAL = re.compile("/(logout|language|attention)/")
PATIENCE = 120


def until(task_id: int, status: str) -> Task:
    deadline = time.monotonic() + PATIENCE
    while (row := Task.objects.get(pk=task_id)).status != status:
        assert time.monotonic() < deadline, f"{row.task_path} is {row.status}, not {status}"
        time.sleep(0.05)
    return row


def crawl(client: Client, admin: str) -> tuple[dict[str, int], set[str]]:
    """The status of every page that links lead to below the admin, and the static files that pages name."""
    found: dict[str, int] = {}
    assets: set[str] = set()
    todo = [admin]
    while todo:
        path = todo.pop(0)
        if path in found:
            continue
        response = client.get(path)
        found[path] = response.status_code
        if response.status_code != 200 or not response.headers["Content-Type"].startswith("text/html"):
            continue
        text = response.content.decode()
        assets |= set(ASSET.findall(text))
        todo += [link for link in LINK.findall(text) if link.startswith(admin) and not SPECIAL.search(link)]
    return found, assets


def main() -> None:
    """`sys.argv` has the admin's path, the worker's pid, and the password of the superuser to create."""
    admin, worker, password = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    greeted, hung = greet.enqueue("Anna"), hang.enqueue()
    for module in (dashboard, tasks):
        assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), module.__file__
    ended = until(int(greeted.id), "COMPLETED")
    until(int(hung.id), "PROCESSING")
    client = Client(raise_request_exception=False, headers={"host": "localhost"})
    client.force_login(get_user_model().objects.create_superuser("root", password=password))
    pages, assets = crawl(client, admin)
    os.killpg(worker, signal.SIGKILL)
    deadline, recovered = time.monotonic() + PATIENCE, []
    while not recovered and time.monotonic() < deadline:
        said = io.StringIO()
        call_command("recover_tasks", "--json", stdout=said)
        recovered = json.loads(said.getvalue())["ids"]
    row = Task.objects.get(pk=hung.id)
    report = {
        "versions": [".".join(map(str, parts[:2])) for parts in (django.VERSION, sys.version_info)],
        "checks": [message.id for message in checks.run_checks()],
        "result": ended.return_value,
        "ordering_key": ended.ordering_key,
        "pages": pages,
        "missing": sorted(asset for asset in assets if finders.find(asset) is None),
        "assets": len(assets),
        "recovered": recovered == [row.pk],
        "status": row.status,
    }
    call_command("cancel_tasks", str(row.pk), "-v0")  # or the next worker would hang on it
    print(json.dumps(report))
