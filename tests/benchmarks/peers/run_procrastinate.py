"""Procrastinate: psycopg's pool, woken by notifications; the verbs of `subject.py`."""

import asyncio
import contextlib
import os
import sys
import time

import http_wait
import procrastinate
import wire
from procrastinate.exceptions import AlreadyEnqueued

app = procrastinate.App(connector=procrastinate.PsycopgConnector(min_size=2, max_size=10))
FILL = """
INSERT INTO procrastinate_jobs (queue_name, task_name, args, lock)
SELECT 'default', %(kind)s, jsonb_build_object('number', n),
    CASE %(lock)s WHEN 'each' THEN 'key' || n WHEN 'one' THEN 'held' END
FROM generate_series(1, %(tasks)s) AS n
"""
TABLES = "procrastinate_jobs, procrastinate_events, procrastinate_workers"
UPDATE = "UPDATE counter SET n = n + 1 WHERE id = %(number)s"
INSERT = "INSERT INTO entry (counter_id) VALUES (%(number)s)"
WAIT_MS = int(os.environ.get("BENCH_WAIT_MS", "0"))
HELD = int(os.environ.get("BENCH_HELD", "0"))
HELD_SECONDS = 3600


@app.task(name="noop")
async def noop(number: int) -> None:
    wire.count()


@app.task(name="update")
async def update(number: int) -> None:
    await app.connector.execute_query_async(UPDATE, number=number)
    wire.count()


@app.task(name="write")
async def write(number: int) -> None:
    async with app.connector.pool.connection() as session, session.transaction():
        await session.execute(INSERT, {"number": number})
        await session.execute(UPDATE, {"number": number})
    wire.count()


@app.task(name="wait")
async def wait(number: int) -> None:
    await http_wait.fetch(WAIT_MS)
    wire.count()


@app.task(name="held")
async def held(number: int) -> None:
    await asyncio.sleep(HELD_SECONDS)


@app.task(name="pause")
async def pause(number: int, milliseconds: int = 0) -> None:
    began = time.monotonic()
    if milliseconds:
        await asyncio.sleep(milliseconds / 1000)
    wire.ran(number, began)


@app.task(name="idle", queue="idle")
async def idle(number: int) -> None:
    """Only enqueued."""


async def setup() -> None:
    await app.schema_manager.apply_schema_async()


async def fill(kind: str, tasks: str) -> None:
    await app.connector.execute_query_async(f"TRUNCATE {TABLES} CASCADE")
    if kind == "held":
        await app.connector.execute_query_async(FILL, kind="held", tasks=HELD, lock="one")
    name, lock = {"keys": ("noop", "each"), "held": ("noop", None)}.get(kind, (kind, None))
    await app.connector.execute_query_async(FILL, kind=name, tasks=int(tasks), lock=lock)
    await app.connector.execute_query_async("ANALYZE procrastinate_jobs")


async def work(at_once: str = "1", kind: str = "") -> None:
    wire.tell("working")
    await app.run_worker_async(queues=["default"], concurrency=2 if kind == "held" else int(at_once or 1))


async def tick() -> None:
    @app.periodic(cron="* * * * *")
    @app.task(name="tick")
    async def tick(timestamp: int) -> None:
        wire.ticked()

    await work()


async def send() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        number, milliseconds = map(int, line.split())
        wire.sent(number, time.monotonic())
        await pause.defer_async(number=number, milliseconds=milliseconds)


async def enqueue(how: str, seconds: str) -> None:
    many = [{"number": 1}] * 1000
    await app.check_connection_async()
    wire.ready()
    began, enqueued = time.monotonic(), 0
    while time.monotonic() - began < float(seconds):
        if how == "bulk":
            await idle.batch_defer_async(*many)
        elif how in ("fresh", "same"):
            with contextlib.suppress(AlreadyEnqueued):
                key = f"{os.getpid()}-{enqueued}" if how == "fresh" else "hot"
                await idle.configure(queueing_lock=key).defer_async(number=1)
        else:
            await idle.defer_async(number=1)
        enqueued += 1000 if how == "bulk" else 1
    wire.rate(enqueued, began)


VERBS = {"setup": setup, "fill": fill, "work": work, "tick": tick, "send": send, "enqueue": enqueue}


async def main(verb: str, *words: str) -> None:
    async with app.open_async():
        await VERBS[verb](*words)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
