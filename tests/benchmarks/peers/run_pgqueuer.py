"""PgQueuer: asyncpg and uvloop, batches of 500 for a drain; the verbs of `subject.py`."""

import asyncio
import os
import sys
import time

import asyncpg
import http_wait
import uvloop
import wire
from pgqueuer import PgQueuer
from pgqueuer.models import Job, Schedule
from pgqueuer.queries import Queries

FILL = """
INSERT INTO pgqueuer (priority, entrypoint, payload, status)
SELECT 0, $1, convert_to(n::text, 'UTF8'), 'queued' FROM generate_series(1, $2) AS n
"""
UPDATE = "UPDATE counter SET n = n + 1 WHERE id = $1"
INSERT = "INSERT INTO entry (counter_id) VALUES ($1)"
LIMIT = int(os.environ.get("BENCH_LIMIT", "0"))
HELD = int(os.environ.get("BENCH_HELD", "0"))
HELD_SECONDS = 3600
WAIT_MS = int(os.environ.get("BENCH_WAIT_MS", "0"))


async def setup(pool: asyncpg.Pool) -> None:
    await Queries.from_asyncpg_pool(pool).install()


async def fill(pool: asyncpg.Pool, kind: str, tasks: str) -> None:
    await pool.execute("TRUNCATE pgqueuer, pgqueuer_log, pgqueuer_statistics")
    if kind == "held":
        await pool.execute(FILL, kind, HELD)
    await pool.execute(FILL, "noop" if kind == "held" else kind, int(tasks))
    await pool.execute("VACUUM ANALYZE pgqueuer")


async def held(job: Job) -> None:
    await asyncio.sleep(HELD_SECONDS)


async def work(pool: asyncpg.Pool, at_once: str = "", kind: str = "") -> None:
    """`at_once`: how many tasks run at a time; nothing: as many as batches of 500 bring. It takes no limit of one."""
    queue = PgQueuer.from_asyncpg_pool(pool)

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        wire.count()

    limited = {"hot": (noop, LIMIT), "held": (held, 1)}
    if kind in limited:
        handler, limit = limited[kind]
        queue.entrypoint(kind, concurrency_limit=limit)(handler)

    @queue.entrypoint("update")
    async def update(job: Job) -> None:
        await pool.execute(UPDATE, int(job.payload or b"0"))
        wire.count()

    @queue.entrypoint("write")
    async def write(job: Job) -> None:
        number = int(job.payload or b"0")
        async with pool.acquire() as session, session.transaction():
            await session.execute(INSERT, number)
            await session.execute(UPDATE, number)
        wire.count()

    @queue.entrypoint("wait")
    async def wait(job: Job) -> None:
        await http_wait.fetch(WAIT_MS)
        wire.count()

    @queue.entrypoint("pause")
    async def pause(job: Job) -> None:
        began = time.monotonic()
        number, milliseconds = map(int, (job.payload or b"").split())
        if milliseconds:
            await asyncio.sleep(milliseconds / 1000)
        wire.ran(number, began)

    wire.tell("working")
    if kind == "wait":
        await queue.run(batch_size=500, max_concurrent_tasks=int(at_once))
    elif at_once:
        await queue.run(batch_size=1, max_concurrent_tasks=max(2, int(at_once)))
    else:
        await queue.run(batch_size=500)


async def tick(pool: asyncpg.Pool) -> None:
    queue = PgQueuer.from_asyncpg_pool(pool)

    @queue.schedule("tick", "* * * * *")
    async def tick(schedule: Schedule) -> None:
        wire.ticked()

    wire.tell("working")
    await queue.run()


async def send(pool: asyncpg.Pool) -> None:
    queries = Queries.from_asyncpg_pool(pool)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        number, milliseconds = line.split()
        wire.sent(int(number), time.monotonic())
        await queries.enqueue("pause", f"{number} {milliseconds}".encode())


async def enqueue(pool: asyncpg.Pool, how: str, seconds: str) -> None:
    queries = Queries.from_asyncpg_pool(pool)
    await pool.fetchval("SELECT 1")
    wire.ready()
    began, enqueued = time.monotonic(), 0
    while time.monotonic() - began < float(seconds):
        if how == "bulk":
            await queries.enqueue(["idle"] * 1000, [b"1"] * 1000, [0] * 1000)
        elif how in ("fresh", "same"):
            key = f"{os.getpid()}-{enqueued}" if how == "fresh" else "hot"
            await queries.enqueue("idle", b"1", dedupe_key=key, on_conflict="skip")
        else:
            await queries.enqueue("idle", b"1")
        enqueued += 1000 if how == "bulk" else 1
    wire.rate(enqueued, began)


VERBS = {"setup": setup, "fill": fill, "work": work, "tick": tick, "send": send, "enqueue": enqueue}


async def main(verb: str, *words: str) -> None:
    async with asyncpg.create_pool(min_size=2, max_size=10) as pool:
        await VERBS[verb](pool, *words)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
