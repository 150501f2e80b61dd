"""Every command that a page offers to copy runs as it stands: no usage error, on a site with a row of everything."""

import html
import re
import shlex
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandParser
from django.test import Client
from django.utils import timezone

from orders.models import Account
from tasks.commands.base import USAGE, OperatorCommand
from tasks.models import Attempt, BulkRun, ExpectedCommand, Lock, Queue, Task, Worker
from tests.commands import run_command
from tests.dashboard.addresses import walk
from tests.dashboard.security.test_security_hostile_text import NOT_READ, Forms
from tests.orders import orders
from tests.people import person
from tests.tasks import rows

pytestmark = pytest.mark.django_db
ID = 4711
OFFERED = re.compile(r'<code translate="no">([^<]*)</code><button[^>]*data-copy|data-copy="([^"]+)"')
# These start processes, or end the walk.
NOT_PRESSED = re.compile(r"logout|demo|burst|password|language")
LISTS = (
    "/admin/tasks/task/?status=READY",
    "/admin/tasks/task/?status=FAILED",
    "/admin/tasks/task/?queue=default",
    "/admin/ops/failures/aaaaaaaaaaaa/",
)


@pytest.fixture(autouse=True)
def a_row_of_everything(settings):
    settings.SHARED_LOOK_SECONDS = 0
    settings.ROWLOCK_LAB = True
    settings.ROWLOCK = {**settings.ROWLOCK, "BURST": True}
    now = timezone.now()
    task = rows.failed(id=ID)
    failed = {"number": 5, "worker_id": "w", "outcome": "failed", "exception_class": "ValueError"}
    Attempt.objects.create(task=task, fingerprint="aaaaaaaaaaaa app/tasks.py:charge", **failed)
    rows.ready(run_after=now + timedelta(days=1))
    rows.ready(queue_name="mail")
    rows.ready(queue_name="quarantine")
    rows.cancelled()
    rows.completed()
    rows.processing(rows.dead_worker())
    Worker.objects.create(id=str(ID), hostname="host", pid=41234, heartbeat_at=now - timedelta(hours=1))
    rows.processing(str(ID))
    Queue.objects.create(name="mail", paused=True, recovery="ask")
    BulkRun.objects.create(id=ID, action="edit", filter="queue=mail", options={"priority": 5}, upto=1, actor="anna")
    ExpectedCommand.objects.create(name="nightly", every=timedelta(hours=1), since=now - timedelta(days=2))
    held = {"acquired_at": now - timedelta(hours=2), "renewed_at": now - timedelta(hours=2)}
    Lock.objects.create(name="nightly", owner="x", fence=7, expires_at=now - timedelta(hours=1), **held)
    orders.shipped(1, id=ID, email_state="unknown", email_since=now)
    Account.objects.create(id=ID, owner=User.objects.create_user("owner"))


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(person("Lock administrators", "Account managers", username="root", is_superuser=True))
    return client


def pages() -> list[str]:
    """Every page that can be read, that of each task among them."""
    found = [*LISTS, *(f"/admin/tasks/task/{task_id}/" for task_id in Task.objects.values_list("pk", flat=True))]
    for route, name in walk():
        if name not in NOT_READ and not re.search(r"[\^(]|<slug", route):
            found.append("/" + re.sub(r"<[^>]+>", str(ID), route))
    return found


def texts(client: Client) -> Iterator[str]:
    """Every page, and the preview behind each of its buttons."""
    for path in pages():
        text = client.get(path).text
        yield text
        for address, fields in Forms(text).found:
            if "confirmed" not in fields and not NOT_PRESSED.search(address or path):
                yield client.post(address or path, fields).text


def fault_of(line: str) -> str:
    """The usage error of this command line, or an empty text. It is run where it can be rolled back, else parsed."""
    assert line.startswith("python manage.py "), line
    name, *argv = shlex.split(line)[2:]
    command = load_command_class(get_commands()[name], name)
    if isinstance(command, OperatorCommand) and command.changes_data:
        outcome = run_command(command, *argv, "--dry-run", name=name)
    else:
        outcome = run_command(ParseOnly(command), *argv, name=name)
    return outcome.stderr if outcome.status == USAGE else ""


class ParseOnly:
    """A command that reads its arguments and does nothing."""

    def __init__(self, command: BaseCommand) -> None:
        self.command = command

    def create_parser(self, *names: str) -> CommandParser:
        self.command._called_from_command_line = True
        return self.command.create_parser(*names)

    def execute(self, *args: object, **options: object) -> None:
        pass


def test_every_command_that_a_page_offers_runs_as_it_stands(client):
    lines = {html.unescape(found[1] or found[2]) for text in texts(client) for found in OFFERED.finditer(text)}
    faults = {line: fault for line in sorted(lines) if (fault := fault_of(line))}
    assert faults == {}
    assert len({shlex.split(line)[2] for line in lines}) >= 15
