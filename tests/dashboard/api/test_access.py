"""Access to the API: tokens, their rights, their end, their limits; and writes that are carried out once."""

import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError
from django.utils import timezone

from dashboard.api import throttle
from dashboard.models import ApiCount, ApiRequest, ApiToken
from tasks.models import Intervention, Task
from tests.commands import run
from tests.dashboard.api.callers import Caller
from tests.people import person
from tests.tasks import handlers, rows

pytestmark = pytest.mark.django_db
ADD = {"task_path": handlers.add.module_path, "args": [1, 2]}


def test_without_a_valid_token_nothing_is_told(client):
    caller = Caller("Operators")
    assert client.get("/api/v1/tasks").status_code == 401
    assert client.get("/api/v1/tasks")["WWW-Authenticate"] == "Bearer"
    for header in ("", "Bearer", "Bearer rowlock_x", f"Basic {caller.secret}", f"Bearer {caller.secret}x"):
        assert client.get("/api/v1/tasks", headers={"Authorization": header}).status_code == 401
    client.force_login(person("Operators"))
    assert client.get("/api/v1/tasks").status_code == 401, "a cookie is no token"
    caller.get("/tasks")
    assert caller.status == 200


@pytest.mark.parametrize(
    "end",
    [
        lambda token: ApiToken.objects.update(revoked_at=timezone.now()),
        lambda token: ApiToken.objects.update(expires_at=timezone.now()),
        lambda token: User.objects.update(is_active=False),
        lambda token: User.objects.update(is_staff=False),
    ],
)
def test_a_token_ends(end):
    caller = Caller("Operators")
    end(caller.token)
    caller.get("/tasks")
    assert caller.status == 401


def test_a_token_has_its_users_rights_and_of_those_its_groups():
    task = rows.failed()
    for caller, status in (
        (Caller("Viewers"), 403),
        (Caller("Operators", narrowed_to="Viewers"), 403),
        (Caller("Viewers", narrowed_to="Operators"), 403),
        (Caller(is_superuser=True, narrowed_to="Viewers", username="root"), 403),
        (Caller(is_superuser=True, narrowed_to="Operators", username="root"), 200),
    ):
        answer = caller.post(f"/tasks/{task.pk}/requeue", version=task.version)
        assert caller.status == status, answer
    stranger = Caller(username="nobody")
    assert "tasks.view_task" in stranger.get("/tasks")["detail"]
    assert stranger.status == 403


def test_the_secret_is_kept_nowhere_and_its_last_use_to_the_minute():
    outcome = run("create_token", "deploy", "--user", person("Operators").username, "--expires", "1d")
    secret = outcome.stdout.strip()
    token = ApiToken.objects.get(name="deploy")
    assert secret.startswith(token.shown)
    assert secret not in json.dumps(list(ApiToken.objects.values()), default=str)
    assert secret not in json.dumps(list(Intervention.objects.values()), default=str)
    assert token.last_used_at is None
    caller = Caller("Operators")
    caller.get("/tasks")
    first = caller.token.last_used_at
    caller.get("/tasks")
    assert caller.token.last_used_at == first is not None
    assert run("revoke_token", "deploy", "--reason", "leaked").status == 0
    assert run("revoke_token", "deploy").status == 1
    assert set(Intervention.objects.filter(target="token:deploy").values_list("action", flat=True)) == {
        "create token user=anna", "revoke token",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("x", "--user", "nobody"), "no active member of staff"),
        (("x", "--user", "anna", "--group", "No"), "There is no group"),
        (("twice", "--user", "anna"), "exists"),
    ],
)
def test_create_token_says_what_is_wrong(words, said):
    person("Operators")
    run("create_token", "twice", "--user", "anna")
    outcome = run("create_token", *words)
    assert (outcome.status, said in outcome.stderr) == (1, True)


def test_who_asks_too_often_waits():
    caller = Caller("Viewers")
    caller.get("/tasks")
    ApiCount.objects.update(number=throttle.MOST_REQUESTS)
    problem = caller.post("/tasks", ADD)
    assert (caller.status, problem["title"]) == (429, "Too Many Requests")
    assert 0 < int(caller.response["Retry-After"]) <= throttle.PERIOD_SECONDS
    assert ApiCount.objects.get().number == throttle.MOST_REQUESTS + 1, "a refused write counts too"
    ApiCount.objects.update(began_at=timezone.now() - timedelta(seconds=throttle.PERIOD_SECONDS))
    caller.get("/tasks")
    assert (caller.status, ApiCount.objects.get().number) == (200, 1)


def test_who_guesses_tokens_waits(client):
    statuses = [
        client.get("/api/v1/tasks", headers={"Authorization": f"Bearer no{number}"}).status_code
        for number in range(throttle.MOST_FAILURES + 1)
    ]
    assert statuses == [401] * throttle.MOST_FAILURES + [429]
    other = client.get("/api/v1/tasks", headers={"Authorization": "Bearer no"}, REMOTE_ADDR="10.1.1.1")
    assert other.status_code == 401, "another address"
    colleague = Caller("Viewers")
    colleague.get("/tasks")
    assert colleague.status == 200, "a valid token of the same address"


def test_the_same_write_again_changes_nothing_and_gets_the_same_answer():
    caller = Caller("Operators")
    first = caller.post("/tasks", ADD, key="one")
    again = caller.post("/tasks", ADD, key="one")
    assert (again, caller.status, caller.response["Idempotent-Replayed"]) == (first, 201, "true")
    assert Task.objects.count() == 1
    caller.post("/tasks", ADD | {"priority": 1}, key="one")
    assert (caller.status, Task.objects.count()) == (422, 1), "another body"
    other = Caller("Operators")
    other.post("/tasks", ADD, key="one")
    assert (other.status, Task.objects.count()) == (201, 2), "another token"


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 201])
def test_a_write_needs_a_key(key):
    caller = Caller("Operators")
    caller.post("/tasks", ADD, key=key)
    assert (caller.status, Task.objects.count()) == (400, 0)


def test_a_refusal_is_not_kept():
    caller, task = Caller("Operators"), rows.failed()
    caller.post(f"/tasks/{task.pk}/requeue", version=task.version + 1, key="k")
    assert (caller.status, ApiRequest.objects.count()) == (412, 0)
    caller.post("/tasks", ADD, key="k")
    assert caller.status == 201


def test_prune_history_forgets_old_keys():
    Caller("Operators").post("/tasks", ADD)
    ApiRequest.objects.update(at=timezone.now() - timedelta(days=2))
    assert run("prune_history", "--older-than", "1d", "--json").data["tables"]["api_requests"] == 1


def test_prune_history_forgets_old_counts():
    Caller("Operators").get("/tasks")
    assert run("prune_history", "--older-than", "1d", "--json").data["tables"]["api_counts"] == 0
    ApiCount.objects.update(began_at=timezone.now() - timedelta(days=2))
    assert run("prune_history", "--older-than", "1d", "--json").data["tables"]["api_counts"] == 1


def test_a_secret_that_is_not_hashed_is_refused_by_the_database():
    with pytest.raises(IntegrityError, match="dashboard_apitoken_hashed"):
        ApiToken.objects.create(name="x", user=person(), secret_hash="rowlock_secret", shown="rowlock_")


def test_a_refused_write_counts_as_a_use():
    caller = Caller("Viewers")
    caller.post("/tasks", ADD)
    assert (caller.status, caller.token.last_used_at is None) == (403, False)
