"""Rowlock's adapter for the public benchmark: a producer here, and `run_worker` as a child that dies with it."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import django
import psutil

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import Error, connection  # noqa: E402

from tasks.models import Task, Worker  # noqa: E402
from tests.benchmarks.pipe import Pipe  # noqa: E402
from tests.benchmarks.public import protocol  # noqa: E402
from tests.benchmarks.public.protocol import Adapter  # noqa: E402
from tests.benchmarks.public.tasks import job  # noqa: E402
from tests.benchmarks.report import revision  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

TABLES = ["public.tasks_task", "public.tasks_attempt"]
START_SECONDS = 50  # below the harness's patience
PAUSE_SECONDS = 0.2  # after a lost connection
DRAIN_SECONDS, GRACE_SECONDS = 10, 8  # together below the harness's patience, which `adapter.json` sets
GUARD = 'cat; kill -9 "-$0"'
Value = TypeVar("Value")


def main() -> int:
    """Run until SIGTERM; the exit status is 1 if the worker ended by itself."""
    adapter = Adapter("rowlock")
    signal.signal(signal.SIGTERM, lambda *_: adapter.stopping.set())
    call_command("migrate", verbosity=0)
    with tempfile.TemporaryDirectory() as folder:
        pipe = Pipe(Path(folder))
        worker, _guard = start_worker(pipe)
        wait_until(lambda: has_registered(worker), seconds=START_SECONDS)
        adapter.describe(TABLES, revision())
        for duty in (Adapter.sample, produce, count, partial(listen, pipe)):
            threading.Thread(target=duty, args=(adapter,), daemon=True).start()
        while worker.poll() is None and not adapter.stopping.wait(0.1):
            pass
        was_alive = worker.poll() is None
        adapter.stopping.set()
        if was_alive:
            finish(worker)
    return 0 if was_alive else 1


def start_worker(pipe: Pipe) -> "tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]":
    """`run_worker` in a group of its own, and a guard that kills the group once this process is gone."""
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "run_worker", "-v0", "--coroutines", str(protocol.WORKERS)],
        env={**os.environ, "BENCH_PIPE": str(pipe.path)}, stdin=subprocess.DEVNULL, stdout=sys.stderr, process_group=0,
    )  # fmt: skip
    words = ["sh", "-c", GUARD, str(worker.pid)]
    return worker, subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0)


def has_registered(worker: "subprocess.Popen[bytes]") -> bool:
    """True once its process has registered to take tasks."""
    return Worker.objects.filter(pid__in=[child.pid for child in psutil.Process(worker.pid).children()]).exists()


def finish(worker: "subprocess.Popen[bytes]") -> None:
    """Let it complete what waits, stop it, and log what is left."""
    deadline = time.monotonic() + DRAIN_SECONDS
    with contextlib.suppress(Error):
        while (left := Task.objects.unfinished().count()) and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
        print(f"rowlock: {left} unfinished, {Task.objects.failed().count()} failed", file=sys.stderr)
    worker.terminate()
    try:
        worker.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)


def listen(pipe: Pipe, adapter: Adapter) -> None:
    for _, completed, *waits in pipe.messages(patience=float("inf")):
        adapter.add(int(completed), map(float, waits))


def produce(adapter: Adapter) -> None:
    queues = itertools.cycle(job.using(queue_name=f"bench{number}") for number in range(protocol.QUEUES))
    numbers = itertools.count()
    for batch in adapter.batches():
        queue = next(queues)
        calls = [((next(numbers), time.time(), protocol.PADDING), {}) for _ in range(batch)]
        adapter.enqueued += len(persistently(adapter, partial(queue.enqueue_many, calls)))


def count(adapter: Adapter) -> None:
    waiting = Task.objects.ready().filter(ordering_key=None, concurrency_key=None)  # as an index has them
    adapter.watch_depth(lambda: persistently(adapter, waiting.count))


def persistently(adapter: Adapter, call: Callable[[], Value]) -> Value:
    """The value of a call, made again on a new connection until it succeeds or the adapter stops."""
    while True:
        try:
            return call()
        except Error as error:
            print(f"rowlock: {error}".strip(), file=sys.stderr)
            connection.close()
            if adapter.stopping.wait(PAUSE_SECONDS):
                raise


if __name__ == "__main__":
    sys.exit(main())
