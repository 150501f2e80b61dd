"""Encrypted payloads in the tables, and what reads them: results, keys, rotation, schedules, the tests of adopters."""

import json

import pytest
from cryptography.fernet import Fernet
from django.db import connection

from tasks import testing
from tasks.checks import check_backend
from tasks.compat import TaskResultStatus
from tasks.exceptions import PayloadLocked
from tasks.framework import payload
from tasks.framework.redacted_calls import redact_call
from tasks.models import Attempt, Schedule, Task
from tasks.operations import schedules
from tasks.support.audit import Who
from tasks.support.redaction import ENVELOPE, is_sealed, redact
from tests.commands import run
from tests.tasks import handlers

OLD, NEW, STRANGE = (Fernet.generate_key().decode() for _ in range(3))
SECRET = "iban-DE02-1203"
WHO = Who("anna", "command")
IN_SQL = "SELECT rowlock_enqueue(%s, %s::jsonb, %s::jsonb)"

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def use_keys(settings):
    """Sets the keys; one until a test sets others."""

    def use(*keys: str) -> None:
        settings.ROWLOCK = {"PAYLOAD_KEYS": list(keys)}

    use(OLD)
    return use


def stored(task_id: object) -> str:
    """Everything that the row of a task holds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT task::text FROM tasks_task AS task WHERE id = %s", [task_id])
        return str(cursor.fetchone()[0])


def test_arguments_and_the_result_are_stored_encrypted_and_read_in_plain():
    task_id = handlers.echo.enqueue({"iban": SECRET}).id
    assert ENVELOPE in stored(task_id)
    assert SECRET not in stored(task_id)
    [result] = testing.run_due()
    assert (result.args, result.return_value) == ([{"iban": SECRET}], {"iban": SECRET})
    assert SECRET not in stored(task_id)
    row = Task.objects.get()
    assert redact_call(row.task_path, row.args, row.kwargs) == (["[encrypted]"], {})
    assert redact(row.return_value) == "[encrypted]"


def test_many_and_keyed_calls_are_encrypted_too():
    ids = [*handlers.nothing.enqueue_many([((SECRET,), {}), ((), {"text": SECRET})])]
    ids.append(int(handlers.at_most_three.enqueue("anna", SECRET).id))
    assert not [task_id for task_id in ids if SECRET in stored(task_id)]
    assert [(row.args, row.kwargs) for row in testing.enqueued()] == [
        ([SECRET], {}), ([], {"text": SECRET}), (["anna", SECRET], {}),
    ]  # fmt: skip


def test_nothing_to_hide_is_stored_as_it_is():
    task_id = handlers.nothing.enqueue().id
    testing.run_due()
    row = Task.objects.get(pk=task_id)
    assert (row.args, row.kwargs, row.return_value) == ([], {}, None)


def test_plain_calls_run_beside_encrypted_ones_and_are_shown_as_they_are(use_keys):
    named = {"rowlock:encrypted": "gAAAA", "more": 1}  # an envelope has nothing beside the token
    with connection.cursor() as cursor:
        cursor.execute(IN_SQL, [handlers.echo.module_path, '["from SQL"]', "{}"])
        cursor.execute(IN_SQL, [handlers.nothing.module_path, "[]", json.dumps(named)])
    use_keys()
    handlers.echo.enqueue("before the keys")
    use_keys(OLD)
    first, second, third = testing.enqueued()
    assert redact_call(first.task_path, first.args, first.kwargs) == (["from SQL"], {})
    assert (second.kwargs, third.args) == (named, ["before the keys"])
    assert {result.status for result in testing.run_due()} == {TaskResultStatus.SUCCESSFUL}


def test_old_keys_still_read_and_the_newest_writes(use_keys):
    old = handlers.echo.enqueue(SECRET).id
    use_keys(NEW, OLD)
    new = handlers.echo.enqueue(SECRET).id
    assert [result.args for result in testing.run_due()] == [[SECRET], [SECRET]]
    use_keys(NEW)
    assert handlers.echo.get_result(new).return_value == SECRET
    with pytest.raises(PayloadLocked, match="add that key to ROWLOCK_PAYLOAD_KEYS"):
        handlers.echo.get_result(old)


def test_no_key_at_all_says_which_setting_is_missing(use_keys):
    task_id = handlers.echo.enqueue(SECRET).id
    use_keys()
    with pytest.raises(PayloadLocked, match="set ROWLOCK_PAYLOAD_KEYS"):
        handlers.echo.get_result(task_id)
    with pytest.raises(PayloadLocked, match="set ROWLOCK_PAYLOAD_KEYS"):
        testing.run_due()


def test_a_changed_token_is_refused():
    task_id = handlers.echo.enqueue(SECRET).id
    row = Task.objects.get(pk=task_id)
    token = row.kwargs[ENVELOPE]
    row.kwargs = {ENVELOPE: token[:40] + ("A" if token[40] != "A" else "B") + token[41:]}
    row.save()
    with pytest.raises(PayloadLocked):
        handlers.echo.get_result(task_id)


def test_a_unique_key_of_arguments_tells_nothing_and_outlives_a_new_key(use_keys):
    use_keys()
    handlers.once_per_arguments.enqueue(1)
    use_keys(OLD)
    kept = handlers.once_per_arguments.enqueue(1).id
    use_keys(NEW, OLD)
    assert handlers.once_per_arguments.enqueue(1).id == kept
    use_keys(STRANGE)
    assert handlers.once_per_arguments.enqueue(1).id != kept
    keys = list(Task.objects.values_list("unique_key", flat=True))
    assert len(set(keys)) == len(keys)


def test_what_a_handler_tells_of_its_arguments_is_withheld():
    task_id = handlers.confide.enqueue(SECRET).id
    testing.run_due(limit=1)
    [result] = testing.run_all()
    assert result.return_value == {"kept": SECRET, "text": SECRET}, "the checkpoint was not read"
    assert "no luck with [redacted]" in Attempt.objects.get().traceback
    with connection.cursor() as cursor:
        cursor.execute("SELECT progress::text FROM tasks_progress AS progress WHERE task_id = %s", [task_id])
        [told] = cursor.fetchone()
    assert "about [redacted]" in told
    assert SECRET not in told + stored(task_id)


def test_the_arguments_of_a_schedule_are_encrypted_and_each_tick_reads_them(use_keys):
    schedules.add("nightly", handlers.echo.module_path, WHO, {"every": 60, "args": [SECRET]})
    row = Schedule.objects.get()
    assert (row.args, is_sealed(row.kwargs)) == ([], True)
    assert not schedules.edit("nightly", WHO, {"args": [SECRET]}), "the same arguments were written again"
    assert schedules.edit("nightly", WHO, {"priority": 3})
    use_keys(NEW, OLD)
    task_id = schedules.run_now("nightly", WHO)
    assert handlers.echo.get_result(task_id).args == [SECRET]
    assert schedules.edit("nightly", WHO, {"args": [], "kwargs": {"value": "other"}})
    assert payload.opened_call([], Schedule.objects.get().kwargs) == ([], {"value": "other"})


def test_what_pages_request_stays_plain_because_they_read_it():
    schedules.switch_on_maintenance("prune-tasks", WHO)
    assert Schedule.objects.get().kwargs == {"older_than": "30d"}


def test_a_search_says_that_it_cannot_see_encrypted_arguments(client, admin_user):
    client.force_login(admin_user)
    handlers.echo.enqueue(SECRET)
    assert "Encrypted arguments are not searched" in run("list_tasks", "--text", SECRET).stdout
    page = client.get("/admin/tasks/task/", {"q": SECRET}).content.decode()
    assert "Encrypted arguments are not searched." in page
    assert "Encrypted arguments" not in client.get("/admin/tasks/task/").content.decode()


def test_a_worker_does_not_start_with_a_key_that_is_none(use_keys):
    use_keys("hunter2")
    refused = run("run_worker", "--burst")
    assert (refused.status, "Key 1 in ROWLOCK_PAYLOAD_KEYS" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    ("keys", "problem"), [([OLD, "hunter2"], "Key 2 in ROWLOCK_PAYLOAD_KEYS"), ([NEW, OLD], None), ([], None)]
)
def test_a_key_that_is_none_is_named_by_its_place_and_not_shown(keys, problem, use_keys):
    use_keys(*keys)
    found = [str(message.msg) for message in check_backend("default", {}) if message.id == "rowlock.E005"]
    assert (found == []) if problem is None else found[0].startswith(problem)
    assert "hunter2" not in " ".join(found)
