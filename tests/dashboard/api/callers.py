"""Callers of the API: a client that sends a token, a new key with each write, and reads JSON."""

import itertools
from typing import Any

from django.contrib.auth.models import Group
from django.test import Client

from dashboard.api import tokens
from dashboard.models import ApiToken
from tasks.support.audit import Who
from tests.people import person

TESTER = Who("tester", "command")
API = "/api/v1"
numbers = itertools.count()


class Caller:
    """`caller.get("/tasks")`; the answer of the last request is `response`, its body is what a call returns."""

    def __init__(self, *groups: str, narrowed_to: str = "", username: str = "anna", is_superuser: bool = False) -> None:
        user = person(*groups, username=username, is_superuser=is_superuser)
        group = Group.objects.get(name=narrowed_to) if narrowed_to else None
        self.name = f"token {next(numbers)}"
        self.secret = tokens.create(self.name, user, TESTER, group=group)
        self.client = Client()
        self.response: Any = None

    @property
    def token(self) -> ApiToken:
        return ApiToken.objects.get(name=self.name)

    def send(self, method: str, path: str, body: object = None, *, key: str | None = None, version: Any = None) -> Any:
        """Send a request; a write has a new key unless `key` is one, or empty."""
        headers = {"Authorization": f"Bearer {self.secret}"}
        if method not in ("get", "head") and key != "":
            headers["Idempotency-Key"] = key or f"key-{next(numbers)}"
        if version is not None:
            headers["If-Match"] = f'"{version}"'
        data = {} if body is None else {"data": body, "content_type": "application/json"}
        self.response = getattr(self.client, method)(API + path, headers=headers, **data)
        is_json = self.response.get("Content-Type", "").startswith("application/json")
        return self.response.json() if is_json else None

    def get(self, path: str) -> Any:
        return self.send("get", path)

    def post(self, path: str, body: object = None, **options: Any) -> Any:
        return self.send("post", path, {} if body is None else body, **options)

    @property
    def status(self) -> int:
        return self.response.status_code
