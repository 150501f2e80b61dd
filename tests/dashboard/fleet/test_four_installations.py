"""A fleet of four: one that works, one that is stopped, one that is frozen and one that answers nonsense."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from django.test import Client

from dashboard.api import tokens
from dashboard.fleet import look
from tasks.support.audit import Who
from tests import databases
from tests.commands import run
from tests.dashboard.fleet.afar import TOKEN, free_port
from tests.dashboard.fleet.test_fleet_page import PAGE, rows_of
from tests.own_admin import combinations
from tests.own_admin.servers import server_of
from tests.people import client_of, person
from tests.tasks import rows
from tests.waiting import wait_until
from tests.web import gunicorn

pytestmark = pytest.mark.django_db(transaction=True)
LISTENS = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
time.sleep(600)
"""
LABELS = {"billing": "Warning 0", "stopped": "Down", "frozen": "No answer", "garbage": "Nonsense"}
SECONDS = 1.5
ROOM = 3.0  # on a machine that is busy with other tests


@contextlib.contextmanager
def frozen_server() -> Iterator[int]:
    """A process that listens and is stopped by SIGSTOP: its port."""
    with subprocess.Popen([sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            port = int(process.stdout.readline())
            process.send_signal(signal.SIGSTOP)
            yield port
        finally:
            process.kill()


def opened(client: Client) -> tuple[dict[str, str], float]:
    """The rows of the page, and the seconds that it took."""
    began = time.monotonic()
    page = client.get(PAGE).text
    return rows_of(page), time.monotonic() - began


def test_all_four_are_labelled_right(live_server, afar, settings):
    task = rows.failed()
    token = tokens.create("fleet", person("Viewers", username="fleet"), Who("anna", "page"))
    client = client_of("Viewers")
    with free_port() as port, frozen_server() as frozen:
        fleet = {
            "billing": live_server.url, "stopped": f"http://127.0.0.1:{port}",
            "frozen": f"http://127.0.0.1:{frozen}", "garbage": f"{afar.url}/garbage",
        }  # fmt: skip
        named = ", ".join(f"{name}={url}|{token}" for name, url in fleet.items())
        settings.ROWLOCK = {**settings.ROWLOCK, "FLEET": named}

        def all_are_labelled() -> bool:
            """A process that imports its pages, or a busy machine, may take more than the second that is given."""
            found, took = opened(client)
            return took < ROOM and all(found[name].startswith(f"{name} {label} ") for name, label in LABELS.items())

        def found_in_billing() -> list[str]:
            hits = look.search(str(task.pk), look.kept())
            return [match.url for hit in hits for match in hit.matches if hit.name == "billing"]

        wait_until(all_are_labelled)
        told = run("fleet_status", "--json")
        assert wait_until(found_in_billing) == [f"{live_server.url}/admin/tasks/task/{task.pk}/"]
    assert told.status == 3
    summary = next(row["summary"] for row in told.data["installations"] if row["name"] == "billing")
    assert (summary["critical"], len(summary["throughput"])) == (0, 60)
    assert [queue for queue in summary["queues"] if queue["failed"] == 1]
    assert any(line["installation"] == "billing" and "failed" in line["text"] for line in told.data["attention"])
    assert token not in str(told)


def test_a_token_without_rights_and_one_that_is_revoked_are_told(live_server, settings):
    weak = tokens.create("weak", person(username="weak"), Who("anna", "page"))
    settings.ROWLOCK = {
        **settings.ROWLOCK, "FLEET": f"weak={live_server.url}|{weak}, none={live_server.url}|{TOKEN}",
    }  # fmt: skip

    def both_answer() -> dict[str, str]:
        found, _took = opened(client_of("Viewers"))
        return found if "No answer" not in str(found) else {}

    found = wait_until(both_answer)
    assert found["weak"].startswith("weak Right missing ")
    assert found["none"].startswith("none Wrong token ")


@pytest.mark.chaos
def test_on_three_versions_of_postgresql(afar, settings, monkeypatch, tmp_path):
    monkeypatch.delenv(databases.MIGRATED, raising=False)  # other servers have no such database
    with contextlib.ExitStack() as stack:
        fleet: dict[str, str] = {}
        webs: dict[str, psutil.Process] = {}
        for name in sorted({one[2] for one in combinations.ALL}):
            installed = combinations.installation(name)
            assert installed, f"this machine has no PostgreSQL ({name})"
            url = databases.named(stack.enter_context(server_of(installed)).url, "rowlock_fleet")
            databases.migrate(url)
            manage(url, "createsuperuser", "--noinput", "--username", "root", "--email", "root@example.test")
            token = manage(url, "create_token", "fleet", "--user", "root", "--group", "Viewers").strip()
            webs[f"pg-{name}"], port = stack.enter_context(thawed(url))
            fleet[f"pg-{name}"] = f"http://127.0.0.1:{port}|{token}"
        settings.ROWLOCK = {
            **settings.ROWLOCK,
            "FLEET": ", ".join(f"{name}={place}" for name, place in {**fleet, "zero": f"{afar.url}/garbage|t"}.items()),
        }
        client = client_of("Viewers")

        def all_answer() -> dict[str, str]:
            found, _took = opened(client)
            return found if all("PG " in found[name] and " as of " not in found[name] for name in fleet) else {}

        servers = {text.rpartition("PG ")[2] for text in wait_until(all_answer, seconds=60).values() if "PG " in text}
        assert len({server.partition(".")[0] for server in servers}) == len(fleet) == 3
        works, stopped, frozen = fleet
        webs[stopped].terminate()
        webs[stopped].wait(30)
        for process in (webs[frozen], *webs[frozen].children(recursive=True)):
            process.suspend()
        found, took = min((opened(client) for _ in range(3)), key=lambda one: one[1])
    assert took < SECONDS
    assert found[works].startswith((f"{works} Healthy", f"{works} Warning"))
    assert found[stopped].startswith(f"{stopped} Down as of ")
    assert found[frozen].startswith(f"{frozen} No answer as of ")
    assert found["zero"].startswith("zero Nonsense")


@contextlib.contextmanager
def thawed(url: str) -> Iterator[tuple[psutil.Process, int]]:
    """A gunicorn whose processes may be suspended: at the end they go on, so that they can end."""
    with gunicorn(url) as (process, port):
        everyone = [process, *process.children(recursive=True)]
        try:
            yield process, port
        finally:
            for one in everyone:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.resume()


def manage(url: str, *argv: str) -> str:
    """Run a command on that database; what it printed."""
    variables = {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings", "DJANGO_SUPERUSER_PASSWORD": "x"}
    done = subprocess.run(
        [sys.executable, "manage.py", *argv], cwd=databases.ROOT, env={**os.environ, **variables}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout
