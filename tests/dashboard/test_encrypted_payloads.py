"""The plain text of encrypted payloads is nowhere: in no dump, page, log, metric, output, e-mail or API."""

import re
import subprocess
from collections.abc import Iterator

import pytest
from cryptography.fernet import Fernet
from django.db import connection

from dashboard.embedded import cluster
from orders.tasks import send_shipped_emails
from tasks.models import Attempt, Task, Worker
from tasks.operations import schedules
from tasks.operations.tokens import new_token
from tasks.support.audit import Who
from tests import processes, smtp
from tests.commands import database_url, run
from tests.dashboard.api.callers import Caller
from tests.orders import orders
from tests.tasks import handlers
from tests.waiting import wait_until

SECRET, PLAIN = "iban-DE02-1203", "plain-from-SQL"
KEY = Fernet.generate_key().decode()
KEYS = "ROWLOCK_PAYLOAD_KEYS"
WHO = Who("anna", "command")
MOST_PAGES = 80
LINK = re.compile(r'(?:href|hx-get)="(/admin/[^"#?]*)')
FIRST_PAGES = ("/metrics", "/admin/tasks/task/?q=DE02", "/admin/tasks/task/?status=FAILED", "/admin/")
NO_PAGES = ("/admin/logout", "/admin/jsi18n", "/admin/ops/lab")


REFUSE = """
CREATE FUNCTION refuse_in_test() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the disk is odd' USING ERRCODE = '22012'; END $$;
CREATE TRIGGER refuse_in_test BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse_in_test()
"""
SCHEDULED = {"name": "nightly", "every": "10m", "timezone": "UTC", "missed": "skip", "overlap": "skip"}


@pytest.fixture
def inbox(settings):
    """A real mail server, to which this process sends too."""
    with smtp.mail_server() as server:
        smtp.use(settings, server, timeout=20)
        yield server


@pytest.fixture
def start_here(ledger):
    """Starts workers on the session's database, which the pages of this process show."""
    workers = []

    def start(*arguments, **variables):
        variables["ROWLOCK_APPS"] = "tests.tasks.handlers_app"
        workers.append(processes.start_worker(database_url(), ledger.url, *arguments, **variables))
        return workers[-1]

    with processes.ended_at_last(workers):
        yield start


def dump() -> str:
    newest = max(cluster.package().glob("pginstall*/bin/pg_dump"))  # it dumps older servers too
    argv = [str(newest), "--inserts", database_url()]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def crawled(client) -> str:
    """Every page that links lead to from the overview."""
    waiting, seen = [*FIRST_PAGES], {}
    while waiting and len(seen) < MOST_PAGES:
        address = waiting.pop(0).replace("&amp;", "&")
        if address in seen or address.startswith(NO_PAGES):
            continue
        answer = client.get(address)
        seen[address] = b"".join(answer) if answer.streaming else answer.content
        waiting += LINK.findall(seen[address].decode(errors="replace"))
    assert {"/admin/ops/schedule/", "/admin/ops/failures/", "/admin/ops/audit/"} <= seen.keys()
    assert any(re.fullmatch(r"/admin/tasks/task/\d+/", address) for address in seen)
    return b"\n".join(seen.values()).decode(errors="replace")


def answers_of(program: Caller, ids: list[str]) -> Iterator[str]:
    """Everything that the API tells of these tasks, their schedules and failures."""
    lists = ("/tasks", "/tasks?status=FAILED", "/schedules", "/failures", "/attention", "/audit", f"/find?q={ids[0]}")
    newest = [f"/tasks/{task_id}" for task_id in Task.objects.values_list("pk", flat=True)]
    for path in (*lists, *newest):
        program.get(path)
        assert program.status == 200, path
        yield program.response.text


@pytest.mark.django_db(transaction=True)
def test_the_plain_text_is_nowhere(client, admin_user, start_here, inbox, monkeypatch):
    monkeypatch.setenv(KEYS, KEY)
    ids = [handlers.echo.enqueue(SECRET).id, handlers.confide.enqueue(SECRET).id, handlers.fail_once.enqueue(SECRET).id]
    ids.append(handlers.once_per_arguments.enqueue(1, 2).id)
    schedules.add("nightly", handlers.echo.module_path, WHO, {"every": 60, "args": [SECRET]})
    ids.append(schedules.run_now("nightly", WHO))
    with connection.cursor() as cursor:
        cursor.execute("SELECT rowlock_enqueue(%s, jsonb_build_array(%s::text))", [handlers.echo.module_path, PLAIN])
    program = Caller(username="program", is_superuser=True)
    ids.append(str(program.post("/tasks", {"task_path": handlers.echo.module_path, "args": [SECRET]})["id"]))
    [order] = orders.shipped()
    send_shipped_emails.enqueue()
    worker = start_here("--burst", "--threads", 2, ROWLOCK_MAX_ATTEMPTS=3, EMAIL_URL=inbox.url)
    worker.wait()
    wait_until(lambda: not Task.objects.filter(finished_at__isnull=True).exists())
    assert {handlers.echo.get_result(task_id).return_value for task_id in (ids[0], ids[4])} == {SECRET}
    assert handlers.confide.get_result(ids[1]).return_value == {"kept": SECRET, "text": SECRET}

    client.force_login(admin_user)
    words = [word for task_id in ids for word in (run("show_task", task_id), run("show_task", task_id, "--json"))]
    words += [run("list_tasks", "--json"), run("list_tasks", "--csv"), run("list_schedules", "--json")]
    places = {
        "dump": dump(),
        "pages": crawled(client),
        "log": worker.log() + worker.output(),
        "commands": "\n".join(word.stdout + word.stderr for word in words),
        "api": "\n".join(answers_of(program, ids)),
        "mail": "\n".join(mail.subject + mail.text for mail in inbox.accepted),
    }
    assert [mail.to for mail in inbox.accepted] == [order.customer_email]
    assert [place for place, text in places.items() if SECRET in text] == []
    assert [place for place, text in places.items() if PLAIN in text] == ["dump", "pages", "api"]
    assert "[encrypted]" in places["api"]
    assert "[encrypted]" in places["pages"]
    assert "[encrypted]" in places["commands"]
    assert "heard [redacted]" in places["log"]
    assert "heard [redacted]" in places["dump"]
    assert KEY not in "".join(places.values())


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("page", "table", "fields"),
    [
        ("tasks/task/enqueue", "tasks_task", {}),
        ("ops/schedule/add", "tasks_schedule", SCHEDULED),
        ("ops/schedule/edit", "tasks_intervention", {**SCHEDULED, "schedule": "hourly", "edition": 1}),
    ],
)
def test_an_error_is_mailed_to_admins_without_what_was_typed(
    page,
    table,
    fields,
    client,
    admin_user,
    inbox,
    settings,
    monkeypatch,
):
    monkeypatch.setenv(KEYS, KEY)
    settings.ADMINS = [("Anna", "anna@example.test")]
    schedules.add("hourly", handlers.echo.module_path, WHO, {"every": 3600, "args": [SECRET]})
    with connection.cursor() as cursor:
        cursor.execute(REFUSE.format(table=table))
    client.force_login(admin_user)
    client.raise_request_exception = False
    typed = {"task": handlers.echo.module_path, "arg-value": f'"{SECRET}"', "token": new_token(), **fields}
    assert client.post(f"/admin/{page}/", typed).status_code == 500
    [mail] = inbox.accepted
    assert mail.to == "anna@example.test"
    assert "the disk is odd" in mail.text
    assert "arg-value = '********************'" in mail.text
    assert SECRET not in mail.text


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("arguments", [(), ("--threads", 2)], ids=["one at a time", "threads"])
def test_a_worker_without_the_key_gives_back_and_says_so(arguments, client, admin_user, start_here, monkeypatch):
    monkeypatch.setenv(KEYS, KEY)
    locked = handlers.echo.enqueue(SECRET)
    plain = handlers.nothing.enqueue()
    keyless = start_here(*arguments, **{KEYS: Fernet.generate_key().decode()})
    keyless.wait_until_it_says("no key in ROWLOCK_PAYLOAD_KEYS")

    def is_recorded() -> bool:
        return Attempt.objects.filter(task_id=locked.id).exists()

    wait_until(is_recorded)
    wait_until(lambda: Task.objects.get(pk=plain.id).status == "COMPLETED")
    row, worker = Task.objects.get(pk=locked.id), Worker.objects.filter(stopped_at__isnull=True).first()
    assert (row.status, row.attempt, Attempt.objects.get().outcome) == ("READY", 0, "released")
    client.force_login(admin_user)
    assert run("list_tasks", "--json", "--status", "READY").data["tasks"][0]["verdict"] == "key_missing"
    assert "with a key that this worker does not have" in client.get(f"/admin/tasks/task/{locked.id}/").content.decode()
    attention = client.get("/admin/").content.decode()
    assert f"Worker {worker.id} cannot read the encrypted arguments of 1 task." in attention
    if arguments:
        return
    keyless.stop()
    assert run("edit_tasks", locked.id, "--set-run-after", "now").status == 0
    monkeypatch.setenv(KEYS, f"{Fernet.generate_key().decode()},{KEY}")
    start_here("--burst").wait()
    assert handlers.echo.get_result(locked.id).return_value == SECRET
