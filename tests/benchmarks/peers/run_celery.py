"""Celery with Redis; the verbs of `subject.py`. BENCH_POOL: prefork, or gevent for many at once in a process."""

import os
import sys

POOL = os.environ["BENCH_POOL"]
if POOL == "gevent" and sys.argv[1] == "work":
    from gevent import monkey

    monkey.patch_all()

import threading  # noqa: E402

import http_wait  # noqa: E402
import psycopg  # noqa: E402
import wire  # noqa: E402
from celery import Celery  # noqa: E402

UPDATE = "UPDATE counter SET n = n + 1 WHERE id = %s"
INSERT = "INSERT INTO entry (counter_id) VALUES (%s)"
WAIT_MS = int(os.environ.get("BENCH_WAIT_MS", "0"))
app = Celery("bench", broker=os.environ["BENCH_REDIS"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    broker_connection_retry_on_startup=False,
    worker_send_task_events=False,
)
own = threading.local()


def session() -> psycopg.Connection:
    if not hasattr(own, "session"):
        own.session = psycopg.connect("", autocommit=True)
    return own.session


@app.task(name="noop")
def noop(number: int) -> None:
    wire.count()


@app.task(name="update")
def update(number: int) -> None:
    session().execute(UPDATE, [number])
    wire.count()


@app.task(name="write")
def write(number: int) -> None:
    with session().transaction():
        session().execute(INSERT, [number])
        session().execute(UPDATE, [number])
    wire.count()


@app.task(name="wait")
def wait(number: int) -> None:
    http_wait.fetch_blocking(WAIT_MS)
    wire.count()


def setup() -> None:
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1)


def fill(kind: str, tasks: str) -> None:
    app.control.purge()
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(1, int(tasks) + 1):
            app.tasks[kind].apply_async([number], producer=producer)


def work(at_once: str = "1", kind: str = "") -> None:
    options = ["--without-mingle", "--without-gossip", "--without-heartbeat", "--prefetch-multiplier=4"]
    name = f"--hostname=w{os.getpid()}"
    app.worker_main(["worker", f"--pool={POOL}", f"--concurrency={at_once or 1}", "--loglevel=error", name, *options])


if __name__ == "__main__":
    {"setup": setup, "fill": fill, "work": work}[sys.argv[1]](*sys.argv[2:])
