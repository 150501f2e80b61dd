"""Identify a backend by its `application_name`: worker, command, web request, lab run, or another program."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.db import connection
from django.http import HttpRequest, HttpResponse

PREFIX = "rowlock"
KINDS = {"worker", "supervisor", "web", "cmd", "lab", "demo", "up", "lock"}


@dataclass(frozen=True)
class Identity:
    """`kind` is one of KINDS, or `other`; `name` is a worker's id, a command, or the application name itself.

    `party` is the owner of a named lock: a worker, command, lab run or web server. Clients choose their own names, so
    this is a label for people, never a proof.
    """

    kind: str
    name: str
    party: "Identity | None" = None

    @property
    def kinds(self) -> set[str]:
        """Its own kind, and its party's kind."""
        return {self.kind, *(self.party.kinds if self.party else ())}

    def __str__(self) -> str:
        return {
            "web": f"web {self.name}".strip(),
            "worker": f"worker {self.name}",
            "supervisor": f"supervisor, pid {self.name}",
            "cmd": f"command {self.name}",
            "lab": f"lab run {self.name}",
            "demo": f"demo {self.name}",
            "lock": f"named lock {self.name}" + (f" of {self.party}" if self.party else ""),
        }.get(self.kind, self.name or self.kind)


@lru_cache(maxsize=10_000)  # each snapshot calls it twice per session
def identify(application_name: str) -> Identity:
    """
    >>> str(identify("rowlock:worker:7f3a"))
    'worker 7f3a'
    >>> identify("psql")
    Identity(kind='other', name='psql', party=None)
    >>> str(identify("rowlock:lock:nightly@cmd:run_locked"))
    'named lock nightly of command run_locked'
    """
    prefix, _, rest = application_name.partition(":")
    kind, _, name = rest.partition(":")
    if prefix != PREFIX or kind not in KINDS:
        return Identity("other", application_name)
    if kind == "lock":
        return _named_lock(name)
    return Identity(kind, name)


def _named_lock(name: str) -> Identity:
    """Split at the last @, because the lock's name may contain one."""
    lock, _, process = name.rpartition("@")
    party = identify(f"{PREFIX}:{process}")
    return Identity("lock", lock, party) if lock and party.kind != "other" else Identity("lock", name)


LONGEST_PATH = 120
COMMENT = re.compile(r"/\* (POST /[\w/.-]*) \*/ ", re.ASCII)
TASK = re.compile(r"/\* rowlock task=(\d{1,18}) traceparent=(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}) \*/ ", re.ASCII)
UNSAFE = re.compile(r"[^\w/.-]", re.ASCII)


class RequestNameMiddleware:
    """Puts the request's name before every statement of a POST."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return self.get_response(request)
        with connection.execute_wrapper(naming(request.path)):
            return self.get_response(request)


def naming(path: str) -> Callable[..., Any]:
    """An execute wrapper for Django's connection that puts the comment before the statement."""
    comment = f"/* POST {UNSAFE.sub('_', path)[:LONGEST_PATH]} */ "

    def execute_named(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        return execute(comment + sql if isinstance(sql, str) else sql, params, many, context)

    return execute_named


def split(query: str) -> tuple[str, str]:
    """Split a query into request and statement; without a comment the request is an empty text.

    >>> split("/* POST /admin/orders/order/7/change/ */ SELECT 1")
    ('POST /admin/orders/order/7/change/', 'SELECT 1')
    >>> split("SELECT 1")
    ('', 'SELECT 1')
    """
    match = COMMENT.match(query)
    return (match[1], query[match.end() :]) if match else ("", query)


def split_task(query: str) -> tuple[int | None, str, str]:
    """Split a handler's query into its task, its trace and the statement, see `tasks/support/tracing.py`.

    >>> trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    >>> split_task(f"/* rowlock task=4711 traceparent={trace} */ SELECT 1") == (4711, trace, "SELECT 1")
    True
    >>> split_task("SELECT 1")
    (None, '', 'SELECT 1')
    """
    match = TASK.match(query)
    return (int(match[1]), match[2], query[match.end() :]) if match else (None, "", query)
