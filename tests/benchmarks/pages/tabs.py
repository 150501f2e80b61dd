"""Tabs that refresh themselves against a real gunicorn, as browsers do: how long each part takes, and what it costs
the database and the web server. First one tab of each part, then fifty.

What the database spends is the processor time of all its processes over what the crowd of sessions costs without the
tabs; beside it stands the server's own sum of the times in which sessions of the database were active.
"""

import contextlib
import http.client
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
import psycopg

from tests.web import gunicorn

# Name, address, seconds between two refreshes, and how many of the fifty tabs of an evening shift have it open.
Opened = tuple[str, str, float, int]
CHARTS = "charts"
OPEN: tuple[Opened, ...] = (
    ("overview", "/admin/", 2.0, 20),
    (CHARTS, "/admin/ops/charts/?span=1h", 10.0, 20),  # they stand on the overview
    ("locks", "/admin/ops/locks/", 2.0, 10),
    ("stuck", "/admin/ops/stale/", 2.0, 8),
    ("workers", "/admin/ops/workers/", 2.0, 6),
    ("tasks", "/admin/tasks/task/", 3.0, 6),
    ("why not running", "/admin/tasks/task/why/queue1/", 5.0, 0),
    ("cron and named locks", "/admin/ops/schedule/", 5.0, 0),
    ("audit", "/admin/ops/audit/", 5.0, 0),
)
ONE_OF_EACH = tuple((*opened[:3], 1) for opened in OPEN)

SETTINGS = "tests.benchmarks.pages.settings"
WARM_UP_SECONDS = 5.0
SETTLE_SECONDS = 20.0  # the first look of a cold process takes long, and is kept ten times as long

ACTIVE = """
SELECT coalesce(sum(active_time), 0) / 1000, coalesce(sum(xact_commit + xact_rollback), 0)
FROM pg_stat_database WHERE datname = current_database()
"""


@dataclass
class Polled:
    """What the tabs saw: seconds of each request by the name of its part, and what went wrong."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Cost:
    """Shares of one core, and the seconds a second in which sessions of the database were active."""

    database: float
    database_active: float
    web: float
    requests: float
    transactions: float


def number_of(opened: tuple[Opened, ...]) -> int:
    """How many tabs these are in a browser."""
    return sum(number for name, *_, number in opened if name != CHARTS)


def polling(
    url: str, cookie: str, postmaster: int, seconds: float, opened: tuple[Opened, ...] = OPEN
) -> tuple[Polled, Cost]:
    """Open these tabs for so long; what they saw, and what that cost."""
    with gunicorn(url, SETTINGS) as (web, port), psycopg.connect(url, autocommit=True) as watch:
        server = psutil.Process(postmaster)
        idle = spent(server), time.monotonic()
        time.sleep(WARM_UP_SECONDS)
        idle_share = (spent(server) - idle[0]) / (time.monotonic() - idle[1])
        polled, over = Polled(), threading.Event()
        with tabs(port, cookie, opened, polled, over):
            time.sleep(SETTLE_SECONDS)
            polled.seconds.clear()
            polled.faults.clear()
            before = spent(server), spent(web), *active(watch), time.monotonic()
            time.sleep(seconds)
            after = spent(server), spent(web), *active(watch), time.monotonic()
            number = sum(map(len, polled.seconds.values()))
    took = after[-1] - before[-1]
    database, served, active_time, transactions = ((after[i] - before[i]) / took for i in range(4))
    return polled, Cost(database - idle_share, active_time, served, number / took, transactions)


def spent(process: psutil.Process) -> float:
    """The processor seconds of a process, of its children, and of those that have ended."""
    total = 0.0
    for part in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = part.cpu_times()
            total += times.user + times.system
            total += times.children_user + times.children_system if part == process else 0.0
    return total


def active(watch: psycopg.Connection) -> tuple[float, float]:
    """Seconds in which sessions of the database were active, and its transactions, since some beginning."""
    found = watch.execute(ACTIVE).fetchone()
    assert found
    return float(found[0]), float(found[1])


@contextlib.contextmanager
def tabs(port: int, cookie: str, opened: tuple[Opened, ...], polled: Polled, over: threading.Event) -> Iterator[None]:
    """So many threads, each a tab that asks, waits and asks again."""
    threads = [
        threading.Thread(target=tab, args=(port, cookie, name, address, every, polled, over))
        for name, address, every, number in opened
        for _ in range(number)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def tab(port: int, cookie: str, name: str, address: str, every: float, polled: Polled, over: threading.Event) -> None:
    """One part of one tab; as the script of the pages does, it waits for `every` seconds after each answer."""
    headers = {"Host": "localhost", "Cookie": cookie, "HX-Request": "true"}
    over.wait(random.random() * every)  # they were not opened at one moment
    while not over.is_set():
        began = time.perf_counter()
        # A new connection each time: gunicorn ends one that has been quiet for two seconds.
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            try:
                connection.request("GET", address, headers=headers)
                answer = connection.getresponse()
                answer.read()
            except OSError as error:
                polled.faults.append(f"{name}: {type(error).__name__}")
            else:
                polled.seconds.setdefault(name, []).append(time.perf_counter() - began)
                if answer.status != 200:
                    polled.faults.append(f"{name}: {answer.status}")
        over.wait(every)


def postmaster_of(url: str) -> int:
    """The process id of the server's main process, which is the parent of every session."""
    with psycopg.connect(url) as session:
        return psutil.Process(session.info.backend_pid).ppid()
