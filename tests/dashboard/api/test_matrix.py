"""Roles, addresses and methods, made from the OpenAPI document: who lacks a right gets 403, and nobody else does."""

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import get_resolver

from dashboard.apps import GROUPS
from tests.dashboard.addresses import PAGES
from tests.dashboard.api.callers import API, Caller
from tests.people import person

pytestmark = pytest.mark.django_db
VIEW, VIEW_SCHEDULE, VIEW_RUN = "tasks.view_task", "tasks.view_schedule", "dashboard.view_labrun"
METHODS = ("get", "post", "put", "patch", "delete")
# What each operation needs. One that is missing here fails the test.
RIGHTS: dict[str, tuple[str, ...]] = {
    "get /tasks": (VIEW,),
    "post /tasks": (VIEW, "tasks.enqueue_task"),
    "get /tasks/{task_id}": (VIEW,),
    "get /tasks/{task_id}/events": (VIEW,),
    "post /tasks/{task_id}/requeue": (VIEW, "tasks.requeue_task"),
    "post /tasks/{task_id}/cancel": (VIEW, "tasks.cancel_task"),
    "post /tasks/{task_id}/edit": (VIEW, "tasks.edit_task"),
    "post /tasks/{task_id}/recover": (VIEW, "tasks.recover_task"),
    "get /tasks/bulk/{verb}": (VIEW, "tasks.recover_task"),
    "post /tasks/bulk/{verb}": (VIEW, "tasks.recover_task"),
    "post /tasks/{task_id}/quarantine": (VIEW, "tasks.edit_task"),
    "post /tasks/{task_id}/put_back": (VIEW, "tasks.edit_task"),
    "get /tasks/runs/{run_id}": (VIEW,),
    "post /tasks/runs/{run_id}/stop": (VIEW,),  # and that of its action
    "get /queues": ("tasks.view_queue",),
    "get /queues/{name}": ("tasks.view_queue",),
    "post /queues/{name}/pause": ("tasks.pause_queue",),
    "post /queues/{name}/resume": ("tasks.pause_queue",),
    "post /queues/{name}/configure": ("tasks.configure_queue",),
    "get /limits": ("tasks.view_limit",),
    "post /limits/{key}/configure": ("tasks.configure_limit",),
    "get /workers": ("tasks.view_worker",),
    "post /workers/{worker_id}/stop": ("tasks.view_worker", "tasks.stop_worker"),
    "get /locks": ("dashboard.view_backend",),
    "get /locks/named": ("tasks.view_commandrun",),
    "post /locks/named/{name}/release": ("tasks.release_lock",),
    "post /locks/signals": ("dashboard.view_backend", "dashboard.signal_backend"),
    "get /schedules": (VIEW_SCHEDULE,),
    "post /schedules": (VIEW_SCHEDULE, "tasks.edit_schedule"),
    "get /schedules/{name}": (VIEW_SCHEDULE,),
    "post /schedules/{name}/edit": (VIEW_SCHEDULE, "tasks.edit_schedule"),
    "post /schedules/{name}/pause": (VIEW_SCHEDULE, "tasks.pause_schedule"),
    "post /schedules/{name}/resume": (VIEW_SCHEDULE, "tasks.pause_schedule"),
    "post /schedules/{name}/run": (VIEW_SCHEDULE, "tasks.run_schedule"),
    "post /schedules/{name}/delete": (VIEW_SCHEDULE, "tasks.edit_schedule"),
    "get /failures": (VIEW,),
    "get /attention": (),
    "post /attention/acknowledge": ("dashboard.acknowledge",),
    "post /attention/withdraw": ("dashboard.acknowledge",),
    "get /audit": ("tasks.view_intervention",),
    "get /lab/runs": (VIEW_RUN,),
    "post /lab/runs": (VIEW_RUN, "dashboard.run_pattern"),
    "get /lab/runs/{run_id}": (VIEW_RUN,),
    "post /lab/runs/{run_id}/stop": (VIEW_RUN, "dashboard.run_pattern"),
    "get /summary": (VIEW, "tasks.view_throughput", "tasks.view_worker", "dashboard.view_backend"),
    "get /find": (VIEW, "tasks.view_worker"),
}
EACH_RIGHT = sorted({right for rights in RIGHTS.values() for right in rights})


@pytest.fixture
def document() -> dict[str, Any]:
    return Client().get(f"{API}/openapi.json").json()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each operation with its method and its path below the API."""
    for path, methods in document["paths"].items():
        yield from ((method, path.removeprefix(API), methods[method]) for method in METHODS if method in methods)


def example(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    """A value that fits the schema."""
    if "$ref" in schema:
        found = reduce(lambda part, name: part[name], schema["$ref"].removeprefix("#/").split("/"), document)
        return example(document, found)
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if choices := schema.get("anyOf"):
        return example(document, choices[0])
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        return {name: example(document, fields[name]) for name in schema.get("required", ())}
    usual = {"integer": schema.get("minimum", 1), "number": 1.0, "boolean": False, "array": [], "string": "a" * 20}
    return schema.get("default", usual[schema["type"]])


def request_of(document: dict[str, Any], path: str, operation: dict[str, Any]) -> tuple[str, Any]:
    """The path with its parameters, and a body that fits."""
    queries = []
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", str(example(document, parameter["schema"])))
        elif parameter["in"] == "query" and parameter["required"]:
            queries.append(f"{parameter['name']}={example(document, parameter['schema'])}")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    return "?".join(filter(None, (path, "&".join(queries)))), example(document, body) if body else None


def rights() -> dict[str, Permission]:
    found = Permission.objects.select_related("content_type")
    return {f"{right.content_type.app_label}.{right.codename}": right for right in found}


def callers() -> Iterator[tuple[str, Caller, set[str]]]:
    """Each role with its rights: nobody, our groups, a superuser, and for each right one who has all but that."""
    known = rights()
    yield "nobody", Caller(username="nobody"), set()
    yield "superuser", Caller(username="root", is_superuser=True), set(known)
    for group in GROUPS:
        own = {name for name, right in known.items() if right.group_set.filter(name=group).exists()}
        yield group, Caller(group, username=group.replace(" ", "-")), own
    for left_out in EACH_RIGHT:
        caller = Caller(username=left_out)
        others = [name for name in EACH_RIGHT if name != left_out]
        caller.token.user.user_permissions.set(known[name] for name in others)
        yield f"all but {left_out}", caller, set(others)


def lacking(role: str, name: str) -> bool:
    """True if the request is to be sent: those who lack one right are only sent where it is needed."""
    return role.removeprefix("all but ") in RIGHTS[name] or not role.startswith("all but ")


def test_each_role_is_refused_what_it_has_no_right_to_and_nothing_else(document, settings):
    settings.ROWLOCK_LAB = True
    found = list(operations(document))
    assert {f"{method} {path}" for method, path, _ in found} == set(RIGHTS)
    deviations = []
    for role, caller, own in callers():
        for method, path, operation in found:
            if not lacking(role, f"{method} {path}"):
                continue
            address, body = request_of(document, path, operation)
            caller.send(method, address, body, version=1)
            if caller.response.streaming:
                caller.response.at_end.close()  # nobody reads it, and it would count as open in later tests
            is_refused = not own.issuperset(RIGHTS[f"{method} {path}"])
            if (caller.status == 403) != is_refused or caller.status in (401, 429, 500):
                deviations.append((role, method, address, caller.status))
    assert not deviations


def test_every_address_is_in_the_document_or_in_the_matrix_of_pages(document):
    patterns = [one for one in get_resolver("dashboard.api.urls").url_patterns if one.name not in PAGES]
    unknown = {f"{API}/" + re.sub(r"<(\w+:)?(\w+)>", r"{\2}", str(one.pattern)) for one in patterns}
    assert unknown - set(document["paths"]) == {f"{API}/", f"{API}/openapi.json"}


def test_without_a_token_every_operation_is_closed(document):
    client = Client()
    client.force_login(person(is_superuser=True, username="root"))  # a cookie is no token
    for method, path, operation in operations(document):
        address, body = request_of(document, path, operation)
        answer = getattr(client, method)(API + address, body, content_type="application/json")
        assert (answer.status_code, answer.json()["status"]) == (401, 401), (method, path)
        assert operation["security"]


def test_every_other_method_is_refused_by_name(document):
    caller = Caller(is_superuser=True, username="root")
    for whole, methods in document["paths"].items():
        path = whole.removeprefix(API)
        possible = set(METHODS) & set(methods)
        address, _body = request_of(document, path, methods[min(possible)])
        for method in set(METHODS) - possible:
            caller.send(method, address, {})
            assert caller.status == 405, (method, address)
            assert set(caller.response["Allow"].lower().split(", ")) == possible


def test_every_operation_describes_every_answer(document):
    for method, path, operation in operations(document):
        assert {"400", "401", "403", "404", "422", "429", "503"} <= set(operation["responses"]), (method, path)
        if method != "get":
            assert {"409", "412", "413", "415", "428"} <= set(operation["responses"]), (method, path)
