"""Awa's adapter for the public benchmark, through its Python package; the harness's own needs a Rust toolchain."""

import asyncio
import itertools
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version

import awa
import protocol

TABLES = ["awa.queue_ring_slots", "awa.lease_ring_slots", "awa.queue_lanes", "awa.attempt_state"]
QUEUE = "bench"
PAUSE_SECONDS = 0.2  # after a lost connection


@dataclass
class Job:
    seq: int
    enqueued_at: float
    padding: str


async def main() -> None:
    adapter = protocol.Adapter("awa-python")
    client = awa.AsyncClient(os.environ["DATABASE_URL"])
    await client.migrate()

    @client.task(Job, queue=QUEUE)
    async def job(found) -> None:
        adapter.add(0, [1000 * (time.time() - found.args.enqueued_at)])
        await asyncio.sleep(protocol.WORK_MS / 1000)
        adapter.completed += 1

    await client.start([(QUEUE, protocol.WORKERS)])
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    adapter.describe(TABLES, version("awa-pg"))
    for duty in (adapter.sample, lambda: produce(adapter), lambda: count(adapter)):
        threading.Thread(target=duty, daemon=True).start()
    await stopped.wait()
    adapter.stopping.set()
    await client.shutdown()


def produce(adapter: protocol.Adapter) -> None:
    client, numbers = awa.Client(os.environ["DATABASE_URL"]), itertools.count()
    for batch in adapter.batches():
        jobs = [Job(next(numbers), time.time(), protocol.PADDING) for _ in range(batch)]
        while not adapter.stopping.is_set():
            try:
                adapter.enqueued += client.enqueue_many_copy(jobs, queue=QUEUE)
                break
            except awa.AwaError as error:
                print(f"awa: {error}", file=sys.stderr)
                adapter.stopping.wait(PAUSE_SECONDS)


def count(adapter: protocol.Adapter) -> None:
    client = awa.Client(os.environ["DATABASE_URL"])

    def waiting() -> int:
        try:
            return sum(stat.available for stat in client.queue_stats() if stat.queue == QUEUE)
        except awa.AwaError as error:
            print(f"awa: {error}", file=sys.stderr)
            return adapter.depth

    adapter.watch_depth(waiting)


if __name__ == "__main__":
    asyncio.run(main())
