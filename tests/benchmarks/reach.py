"""The API over HTTP: requests a second, pages of a long list at its beginning and deep inside; and the alerts.

The cost of traces has a part of its own, `tracing`.
"""

import contextlib
import http.client
import itertools
import json
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import psycopg

from tests import databases
from tests.benchmarks.alert_latency import alert_latency
from tests.benchmarks.bench import Bench
from tests.benchmarks.growth import Grown
from tests.benchmarks.pages.scene import FILLING, FINISHED, in_chunks
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.report import Part, Table, percentile, summaries, waits
from tests.benchmarks.subject import HANDLERS
from tests.web import gunicorn

SETTINGS = FILLING
ROWS, FAILED = 10_000_000, 10_000
INCIDENTS = 5  # of each watcher: one takes 8 s
CALLERS = 8
SECONDS = 5.0
PAGES = 200
GOAL_MS = 100.0
ENQUEUE = {"task_path": f"{HANDLERS}.tasks.noop"}
REQUESTS: dict[str, tuple[str, object]] = {
    "one task": ("/tasks/{id}", None),
    "50 tasks": ("/tasks", None),
    "queues": ("/queues", None),
    "summary": ("/summary", None),
    "enqueue a task": ("/tasks", ENQUEUE),
}
# A token may ask so many times a minute: together these may ask more often than one web process can answer.
TOKENS = 10  # of each caller
MAKE_TOKENS = """
import json, sys
from django.contrib.auth.models import Group, User
from dashboard.api import tokens
from tasks.support.audit import Who

user = User.objects.create_user("bench", is_staff=True)
user.groups.set(Group.objects.all())
who = Who("bench", "command")
print(json.dumps([tokens.create(f"caller {number}", user, who) for number in range(int(sys.argv[1]))]))
"""


class Caller:
    """One connection that stays open, with tokens of its own, which it takes in turn."""

    def __init__(self, port: int, tokens: Sequence[str]) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.tokens = itertools.cycle(tokens)

    def read(self, path: str, body: object = None) -> dict:
        """The body of a 200, or of a 201 to a write of `body`. Raises Unfit."""
        headers = {"Authorization": f"Bearer {next(self.tokens)}"}
        if body is not None:
            headers |= {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4())}
        sent = None if body is None else json.dumps(body)
        self.connection.request("GET" if body is None else "POST", f"/api/v1{path}", sent, headers)
        answer = self.connection.getresponse()
        found = answer.read()
        if answer.status not in (200, 201):
            raise Unfit(f"{path} answered {answer.status}: {found[:200]!r}")
        return json.loads(found)


def run(scene: Bench) -> Part:
    part = scene.part("reach", "Reach: the API over HTTP, from one web process, and alerts")
    rows = ROWS if scene.options.finished is None else scene.options.finished
    grown = Grown(scene, 99, f"{rows:,} tasks")
    databases.migrate(grown.url)
    fill(rows, grown)
    tokens = tokens_of(grown)
    with gunicorn(grown.url, ROWLOCK_APPS=HANDLERS) as (_process, port):
        paged = pages(scene, Caller(port, tokens[0]), rows)
        asked = requests(scene, port, tokens, rows)
    alerts = latencies(scene)
    part.tables = [asked, waits(f"Pages of 50 among {rows:,} tasks", paged)]
    if alerts:
        part.tables.append(waits("From the beginning of an incident to the receipt of its alert", alerts))
    part.figures = {"requests": asked.rows, "pages": summaries(paged), "alerts": summaries(alerts)}
    slow = {name: 1000 * percentile(values, 0.95) for name, values in paged.items()}
    part.notes = [
        f"{CALLERS} callers, each with a connection and tokens of its own, on the same machine as the server. "
        f"Goal: p95 of a page below {GOAL_MS:.0f} ms; "
        + ", ".join(f"{name}: {value:.1f} ms" for name, value in slow.items())
        + ".",
        *scene.excuses.values(),
    ]
    return part


def fill(rows: int, grown: Grown) -> None:
    """Two weeks of finished tasks, 10,000 of them failed."""
    with psycopg.connect(grown.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        in_chunks(connection, FINISHED, rows, stride=max(1, rows // FAILED))
        connection.execute("VACUUM (ANALYZE, FREEZE)")
    grown.scene.say(f"filled {rows:,} tasks")


def latencies(scene: Bench) -> dict[str, list[float]]:
    """The seconds of each incident, by who watches; `--tasks` says how many incidents."""
    few = replace(scene, options=replace(scene.options, tasks=scene.tasks(INCIDENTS)))
    try:
        return alert_latency(few)
    except Unfit as reason:
        scene.excuse("alerts", reason)
        return {}


def requests(scene: Bench, port: int, tokens: Sequence[Sequence[str]], rows: int) -> Table:
    """Requests a second of all callers together, and the time of one."""
    seconds = scene.seconds(SECONDS)
    table = Table(f"Requests of {CALLERS} callers over {seconds:g} s", ["", "a second", "p50, ms", "p95, ms"])
    for name, (path, body) in REQUESTS.items():
        took = asked_by_all(port, tokens, path.format(id=rows // 2), seconds, body)
        row = [name, len(took) / seconds, 1000 * percentile(took, 0.5), 1000 * percentile(took, 0.95)]
        scene.say(f"{name}: {row[1]:,.0f} requests a second")
        table.rows.append(row)
    return table


def asked_by_all(
    port: int, tokens: Sequence[Sequence[str]], path: str, seconds: float, body: object = None
) -> list[float]:
    """The seconds of each request. Raises Unfit."""
    took: list[float] = []
    faults: list[Unfit] = []
    ends = time.monotonic() + seconds

    def ask(own: Sequence[str]) -> None:
        caller = Caller(port, own)
        with contextlib.closing(caller.connection):
            try:
                while (began := time.monotonic()) < ends:
                    caller.read(path, body)
                    took.append(time.monotonic() - began)
            except Unfit as fault:
                faults.append(fault)

    threads = [threading.Thread(target=ask, args=(own,)) for own in tokens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return took


def pages(scene: Bench, caller: Caller, rows: int) -> dict[str, list[float]]:
    """The seconds of each page: one after the other from the newest, and from places all over the list."""
    number = min(PAGES, scene.tasks(PAGES))
    chance = random.Random(7)
    with contextlib.closing(caller.connection):
        return {
            "one after the other": list(walked(caller, number)),
            "anywhere": [timed(caller, str(chance.randint(1, rows)))[0] for _ in range(number)],
            "anywhere, completed ones": [
                timed(caller, str(chance.randint(1, rows)), "&status=COMPLETED")[0] for _ in range(number)
            ],
        }


def walked(caller: Caller, number: int) -> Iterator[float]:
    cursor = ""
    for _ in range(number):
        seconds, following = timed(caller, cursor)
        yield seconds
        if following is None:
            return
        cursor = following


def timed(caller: Caller, cursor: str, more: str = "") -> tuple[float, str | None]:
    """The seconds of one page, and where the next one begins."""
    began = time.monotonic()
    found = caller.read(f"/tasks?limit=50{f'&cursor={cursor}' if cursor else ''}{more}")
    return time.monotonic() - began, found["next"]


def tokens_of(grown: Grown) -> list[list[str]]:
    """The tokens of each caller; their user has every right."""
    argv = [sys.executable, "-c", f"import django\ndjango.setup()\n{MAKE_TOKENS}", str(CALLERS * TOKENS)]
    made = subprocess.run(argv, env=grown.environment(), cwd=databases.ROOT, check=True, text=True, capture_output=True)
    found = json.loads(made.stdout)
    return [found[number::CALLERS] for number in range(CALLERS)]
