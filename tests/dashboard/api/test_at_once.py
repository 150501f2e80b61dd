"""Equal requests at once, over HTTP, each in a thread and a session of its own."""

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tasks.models import Intervention, Task
from tests.dashboard.api.callers import Caller
from tests.dashboard.scenes import Scene
from tests.tasks import handlers, rows

pytestmark = pytest.mark.django_db(transaction=True)
REQUESTS = 20


def sent(url: str, secret: str, body: dict[str, object], key: str, version: int | None = None) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json", "Idempotency-Key": key}
    if version is not None:
        headers["If-Match"] = f'"{version}"'
    request = Request(url, json.dumps(body).encode(), headers, method="POST")
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_twenty_equal_requests_with_one_key_change_one_row(live_server):
    caller = Caller("Operators")
    body = {"task_path": handlers.add.module_path, "args": [1, 2]}
    with ThreadPoolExecutor(REQUESTS) as pool:
        url = f"{live_server.url}/api/v1/tasks"
        answers = list(pool.map(lambda _: sent(url, caller.secret, body, "one"), range(REQUESTS)))
    assert {status for status, _ in answers} == {201}, answers
    assert len({text for _, text in answers}) == 1
    assert (Task.objects.count(), Intervention.objects.filter(action="enqueue").count()) == (1, 1)


def test_of_twenty_requests_with_their_own_keys_one_finds_the_version(live_server):
    caller, task = Caller("Operators"), rows.failed()
    url = f"{live_server.url}/api/v1/tasks/{task.pk}/requeue"
    with ThreadPoolExecutor(REQUESTS) as pool:
        answers = list(pool.map(lambda n: sent(url, caller.secret, {}, f"key{n}", task.version), range(REQUESTS)))
    assert sorted(status for status, _ in answers).count(200) == 1, answers
    assert {status for status, _ in answers} <= {200, 409, 412}
    assert Intervention.objects.filter(action="requeue").count() == 1


def test_a_row_that_a_session_holds_is_refused_at_once_with_its_pid():
    caller, task = Caller("Operators"), rows.failed()
    with Scene() as scene:
        scene.holding("psql", f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE")
        problem = caller.post(f"/tasks/{task.pk}/requeue", version=task.version, key="k")
        assert (caller.status, f"pid {scene.pid('psql')}" in problem["detail"]) == (409, True), problem
    caller.post(f"/tasks/{task.pk}/requeue", version=task.version, key="k")
    assert caller.status == 200, "a refusal keeps no key"
