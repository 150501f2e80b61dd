"""Each page and each part that refreshes itself, asked in this process, one after the other.

Nothing is shared between two requests, so each is the first of its second (the charts: of their five minutes): what a
person waits for who opens the page alone.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

PAGE, PART = "page", "part"
ROUNDS = 20
LONGEST_SECONDS = 5.0  # a round of a slow page is not repeated for longer than this

# Name, address, and whether the part that refreshes itself is measured too (None: there is nothing else).
ADDRESSES: tuple[tuple[str, str, bool | None], ...] = (
    ("overview", "/admin/", True),
    ("charts, a day", "/admin/ops/charts/?span=24h", None),
    ("charts, a week", "/admin/ops/charts/?span=7d", None),
    ("tasks", "/admin/tasks/task/", True),
    ("tasks, failed of a queue", "/admin/tasks/task/?status=FAILED&queue=queue1", True),
    ("tasks, ready of a queue", "/admin/tasks/task/?status=READY&queue=queue1", True),
    ("tasks of a function", "/admin/tasks/task/?task=app.tasks.number3", True),
    ("tasks of an unknown function", "/admin/tasks/task/?task=app.tasks.nobody", False),
    ("tasks, an error group", "/admin/tasks/task/?status=FAILED&error=app.errors.Number3", True),
    ("tasks, older than a week", "/admin/tasks/task/?older_than=7d", True),
    ("tasks of a worker", "/admin/tasks/task/?worker=live3", True),
    ("tasks, text in arguments", "/admin/tasks/task/?q=471147", False),
    ("one task", "/admin/tasks/task/4711/", True),
    ("why not running", "/admin/tasks/task/why/queue1/", True),
    ("preview of a bulk action, failed", "POST /admin/tasks/task/all/requeue/ status=FAILED", False),
    ("preview of a bulk action, ready", "POST /admin/tasks/task/all/cancel/ status=READY", False),
    ("queues", "/admin/tasks/queue/", False),
    ("attempts", "/admin/tasks/attempt/", False),
    ("stuck", "/admin/ops/stale/", True),
    ("locks", "/admin/ops/locks/", True),
    ("lock history", "/admin/ops/locks/history/", False),
    ("workers", "/admin/ops/workers/", True),
    ("cron and named locks", "/admin/ops/schedule/", True),
    ("audit", "/admin/ops/audit/", True),
    ("audit of a person", "/admin/ops/audit/?actor=person3", True),
    ("audit of nobody", "/admin/ops/audit/?actor=nobody", True),
    ("orders", "/admin/orders/order/", False),
    ("accounts", "/admin/orders/account/", False),
    ("metrics", "/metrics", False),
)


@dataclass
class Measured:
    """The requests of one address: seconds in all and in the database, bytes and statements of the last one."""

    name: str
    kind: str
    address: str
    statuses: set[int] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)
    database_seconds: list[float] = field(default_factory=list)
    size: int = 0
    queries: int = 0
    web_cpu: float = 0.0  # processor seconds of one request: the part that a busy machine does not lengthen
    database_cpu: float = 0.0


class Watch:
    """Counts the statements of Django's connection, and their time."""

    def __init__(self) -> None:
        self.number, self.seconds = 0, 0.0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            self.number += 1
            self.seconds += time.perf_counter() - began


def measure(client: Any, rounds: int = ROUNDS, only: str = "") -> Iterator[Measured]:
    """Every address whose name contains `only`, each as a page and as a part."""
    for name, address, has_part in ADDRESSES:
        if only not in name:
            continue
        if has_part is not None:
            yield asked(client, Measured(name, PAGE, address), rounds)
        if has_part in (True, None):
            yield asked(client, Measured(name, PART, address), rounds)


def asked(client: Any, measured: Measured, rounds: int) -> Measured:
    """Ask so many times; the first time, which compiles templates and connects, does not count."""
    ask(client, measured)
    measured.seconds.clear()
    measured.database_seconds.clear()
    deadline = time.monotonic() + LONGEST_SECONDS
    before = time.thread_time(), backend_cpu()
    for number in range(rounds):
        if number >= 3 and time.monotonic() > deadline:
            break
        ask(client, measured)
    number = len(measured.seconds)
    measured.web_cpu = (time.thread_time() - before[0]) / number
    measured.database_cpu = (backend_cpu() - before[1]) / number
    return measured


def backend_cpu() -> float:
    """Processor seconds that the server has spent on Django's session; helpers of parallel plans are not in it."""
    from django.db import connection

    times = psutil.Process(connection.connection.info.backend_pid).cpu_times()
    return times.user + times.system


def ask(client: Any, measured: Measured) -> None:
    from django.db import connection

    headers = {"hx-request": "true"} if measured.kind == PART else {}
    watch = Watch()
    with connection.execute_wrapper(watch):
        began = time.perf_counter()
        answer = sent(client, measured.address, headers)
        measured.seconds.append(time.perf_counter() - began)
    measured.statuses.add(answer.status_code)
    measured.database_seconds.append(watch.seconds)
    measured.size, measured.queries = len(answer.content), watch.number


def sent(client: Any, address: str, headers: dict[str, str]) -> Any:
    """A GET, or for `POST address filter` the form with which the list asks for a preview."""
    if not address.startswith("POST "):
        return client.get(address, headers=headers)
    _method, path, query = address.split(" ", 2)
    return client.post(path, {"filter": query}, headers=headers)
