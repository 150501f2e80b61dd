"""The API over HTTP: requests a second, and how long a page of a long list takes, at its beginning and deep inside."""

import contextlib
import http.client
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from tests import databases
from tests.benchmarks.bench import Bench
from tests.benchmarks.growth import FINISHED, Grown, finish
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.report import Part, Table, percentile, summaries, waits
from tests.web import gunicorn

CALLERS = 8
SECONDS = 5.0
PAGES = 200
GOAL_MS = 100.0
REQUESTS = {
    "one task": "/tasks/{id}",
    "50 tasks": "/tasks",
    "queues": "/queues",
    "summary": "/summary",
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

    def read(self, path: str) -> dict:
        """The body of a 200. Raises Unfit."""
        headers = {"Authorization": f"Bearer {next(self.tokens)}"}
        self.connection.request("GET", f"/api/v1{path}", headers=headers)
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise Unfit(f"GET {path} answered {answer.status}: {body[:200]!r}")
        return json.loads(body)


def run(scene: Bench) -> Part:
    part = scene.part("reach", "Reach: the API over HTTP, from one web process")
    rows = FINISHED if scene.options.finished is None else scene.options.finished
    grown = Grown(scene, 99, f"{rows:,} tasks")
    databases.migrate(grown.url)
    finish(rows, grown)
    grown.execute("VACUUM ANALYZE")
    tokens = tokens_of(grown)
    with gunicorn(grown.url) as (_process, port):
        asked = requests(scene, port, tokens, rows)
        paged = pages(scene, Caller(port, tokens[0]), rows)
    part.tables = [asked, waits(f"Pages of 50 among {rows:,} tasks", paged)]
    part.figures = {"requests": asked.rows, "pages": summaries(paged)}
    slow = {name: 1000 * percentile(values, 0.95) for name, values in paged.items()}
    part.notes = [
        f"{CALLERS} callers, each with a connection and tokens of its own, on the same machine as the server. "
        f"Goal: p95 of a page below {GOAL_MS:.0f} ms; "
        + ", ".join(f"{name}: {value:.1f} ms" for name, value in slow.items())
        + ".",
        *scene.excuses.values(),
    ]
    return part


def requests(scene: Bench, port: int, tokens: Sequence[Sequence[str]], rows: int) -> Table:
    """Requests a second of all callers together, and the time of one."""
    seconds = scene.seconds(SECONDS)
    table = Table(f"Requests of {CALLERS} callers over {seconds:g} s", ["", "a second", "p50, ms", "p95, ms"])
    for name, path in REQUESTS.items():
        took = asked_by_all(port, tokens, path.format(id=rows), seconds)
        row = [name, len(took) / seconds, 1000 * percentile(took, 0.5), 1000 * percentile(took, 0.95)]
        scene.say(f"{name}: {row[1]:,.0f} requests a second")
        table.rows.append(row)
    return table


def asked_by_all(port: int, tokens: Sequence[Sequence[str]], path: str, seconds: float) -> list[float]:
    """The seconds of each request. Raises Unfit."""
    took: list[float] = []
    faults: list[Unfit] = []
    ends = time.monotonic() + seconds

    def ask(own: Sequence[str]) -> None:
        caller = Caller(port, own)
        with contextlib.closing(caller.connection):
            try:
                while (began := time.monotonic()) < ends:
                    caller.read(path)
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
