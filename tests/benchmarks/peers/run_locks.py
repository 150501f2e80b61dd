"""One process that takes and releases a lock, alone or against another one, by one of five kinds."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import django

django.setup()

import psycopg  # noqa: E402
import redis  # noqa: E402

from tasks.locking import lock  # noqa: E402
from tasks.support.database import name_sessions_of_handlers  # noqa: E402
from tests.benchmarks.peers import wire  # noqa: E402

TTL_SECONDS, WAIT_SECONDS = 30, 30
NAME, KEY = "bench", 4711
Take = Callable[[], AbstractContextManager[object]]


def ours(backend: str) -> Take:
    """As in a worker, which keeps a session between two locks."""
    name_sessions_of_handlers("rowlock:worker:bench")
    return lambda: lock(NAME, ttl=TTL_SECONDS, wait=WAIT_SECONDS, backend=backend)


def redis_py() -> Take:
    client = redis.Redis.from_url(os.environ["REDIS_URL"])
    return lambda: client.lock("bench-bare", timeout=TTL_SECONDS, blocking_timeout=WAIT_SECONDS)


def plain() -> Take:
    connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)

    @contextlib.contextmanager
    def hold():
        connection.execute("SELECT pg_advisory_lock(%s)", [KEY])
        try:
            yield
        finally:
            connection.execute("SELECT pg_advisory_unlock(%s)", [KEY])

    return hold


def taker(kind: str) -> Take:
    return {"redis_py": redis_py, "plain": plain}[kind]() if kind in ("redis_py", "plain") else ours(kind)


def rate(kind: str, seconds: str) -> None:
    take = taker(kind)
    with take():
        pass
    began, taken = time.monotonic(), 0
    while time.monotonic() - began < float(seconds):
        with take():
            taken += 1
    wire.rate(taken, began)


def contend(kind: str, side: str, milliseconds: str) -> None:
    """Until it is ended: take it, hold it for so long, tell when it asked, had it and let go."""
    take = taker(kind)
    wire.ready()
    while True:
        asked = time.monotonic()
        with take():
            began = time.monotonic()
            time.sleep(int(milliseconds) / 1000)
            ended = time.monotonic()
        wire.tell("held", side, asked, began, ended)


if __name__ == "__main__":
    {"rate": rate, "contend": contend}[sys.argv[1]](*sys.argv[2:])
