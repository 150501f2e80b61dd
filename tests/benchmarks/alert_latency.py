"""Alert latency: from the moment at which one session blocks another until the message about it is received.

A line appears after 5 s of blocking, which are part of the figures. `python -m tests.benchmarks.alert_latency [N]`
measures N incidents of each kind and keeps no report.
"""

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Iterator

import psycopg

from tests import databases, processes
from tests.benchmarks.bench import Bench, Options, bench
from tests.benchmarks.growth import Grown
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.report import percentile
from tests.dashboard.alerts.receiver import Receiver, receiving
from tests.web import gunicorn

INCIDENTS = 20
LONGEST_SECONDS = 60.0
COMPARED_EVERY_SECONDS = 2.0  # an incident begins at any moment between two comparisons
WATCHERS = ("the web process watches", "a supervisor of workers watches")
TAKE = "SELECT pg_advisory_lock(4711)"


def alert_latency(scene: Bench) -> dict[str, list[float]]:
    """The seconds of each incident, by who watches. Raises Unfit if a message is not received."""
    figures = {}
    for number, watcher in enumerate(WATCHERS):
        grown = Grown(scene, 90 + number, watcher)
        databases.migrate(grown.url)
        with receiving() as receiver, contextlib.ExitStack() as stack:
            stack.enter_context(told_at(f"http://127.0.0.1:{receiver.port}/"))
            if watcher == WATCHERS[0]:
                stack.enter_context(gunicorn(grown.url))
            stack.enter_context(processes.ended_at_last([processes.start_worker(grown.url, grown.url)], is_quiet=True))
            figures[watcher] = list(incidents(scene, grown.url, receiver, watcher))
    return figures


@contextlib.contextmanager
def told_at(address: str) -> Iterator[None]:
    """Processes that start in this block send their alerts there."""
    variables = {"ROWLOCK_ALERT_URLS": address, "ROWLOCK_ALERT_PRIVATE": "1"}
    os.environ |= variables
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def incidents(scene: Bench, url: str, receiver: Receiver, watcher: str) -> Iterator[float]:
    chance = random.Random(7)
    incident(url, receiver, "first")  # the watcher and its worker start meanwhile
    for number in range(1, scene.tasks(INCIDENTS) + 1):
        time.sleep(chance.uniform(0, COMPARED_EVERY_SECONDS))
        yield incident(url, receiver, f"incident-{number}")
    scene.say(f"{watcher}: {len(receiver.posts)} messages")


def incident(url: str, receiver: Receiver, name: str) -> float:
    """The seconds from the wait of one session for another, named so, to the receipt of what is sent about it."""
    with (
        psycopg.connect(url, autocommit=True, application_name=name) as blocker,
        psycopg.connect(url, autocommit=True) as blocked,
    ):
        blocker.execute("BEGIN")
        blocker.execute(TAKE)
        waiting = threading.Thread(target=blocked.execute, args=(TAKE,))
        began = time.monotonic()
        waiting.start()
        try:
            while not any(f"({name}," in body["title"] for body in receiver.bodies):
                if time.monotonic() - began > LONGEST_SECONDS:
                    raise Unfit(f"no message within {LONGEST_SECONDS:g} s")
                time.sleep(0.005)
            return time.monotonic() - began
        finally:
            blocker.execute("SELECT pg_advisory_unlock(4711)")
            waiting.join()


def main(words: list[str]) -> None:
    with bench(Options(tasks=int(words[0]) if words else None)) as scene:
        for watcher, values in alert_latency(scene).items():
            shares = {"p50": 0.5, "p95": 0.95, "max": 1.0}
            text = ", ".join(f"{name} {percentile(values, share):.2f} s" for name, share in shares.items())
            print(f"{watcher}: {len(values)} incidents, {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
