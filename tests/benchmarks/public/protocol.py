"""The harness's protocol for an adapter: settings from the environment, pacing, samples as lines of JSON on stdout."""

import datetime
import json
import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

WINDOW_SECONDS = 30
STEP = math.log(1.005)  # latencies are counted in classes that are half a percent wide
GLOBAL = {"queue_depth", "producer_target_rate"}  # only the first replica reports them


def setting(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


INSTANCE = setting("BENCH_INSTANCE_ID", 0)
SAMPLE_SECONDS = setting("SAMPLE_EVERY_S", 5)
RATE = setting("PRODUCER_RATE", 800)
TARGET_DEPTH = setting("TARGET_DEPTH", 1000)
WORKERS = setting("WORKER_COUNT", 32)
WORK_MS = setting("JOB_WORK_MS", 1)
BATCH_MAX = setting("PRODUCER_BATCH_MAX", 128)
BATCH_SECONDS = setting("PRODUCER_BATCH_MS", 25) / 1000
QUEUES = setting("BENCH_QUEUE_COUNT", 1)
PADDING = "x" * max(0, setting("JOB_PAYLOAD_BYTES", 256) - 96)


class Adapter:
    """One replica. `stopping` is set once it has been asked to stop."""

    def __init__(self, system: str) -> None:
        self.system = system
        self.stopping = threading.Event()
        self.enqueued = self.completed = self.depth = 0
        self._lock = threading.Lock()
        self._waits: deque[Counter[int]] = deque([Counter()], maxlen=1 + math.ceil(WINDOW_SECONDS / SAMPLE_SECONDS))

    def describe(self, tables: list[str], version: str) -> None:
        """Tell the harness that this replica runs."""
        database = os.environ["DATABASE_URL"].rpartition("/")[2].partition("?")[0]
        self.emit(
            kind="descriptor", event_tables=tables, extensions=[], version=version, schema_version=version,
            db_name=database, started_at=now(),
        )  # fmt: skip

    def emit(self, **record: object) -> None:
        print(json.dumps({"system": self.system, "instance_id": INSTANCE, **record}), flush=True)

    def add(self, completed: int, wait_ms: Iterable[float]) -> None:
        """Count jobs that ended, and how long others waited before they began."""
        self.completed += completed
        self.depth = max(0, self.depth - completed)  # until the next count
        with self._lock:
            self._waits[-1].update(round(math.log(max(wait, 0.01)) / STEP) for wait in wait_ms)

    def percentile(self, share: float) -> float:
        """Milliseconds from enqueue to begin, of the last WINDOW_SECONDS."""
        with self._lock:
            counts: Counter[int] = sum(self._waits, Counter())
        missing = share * counts.total()
        for step in sorted(counts):
            missing -= counts[step]
            if missing <= 0:
                return math.exp(step * STEP)
        return 0.0

    def sample(self) -> None:
        """Report every SAMPLE_SECONDS by the wall clock until it stops."""
        before, at = (self.enqueued, self.completed), time.monotonic()
        while not self.stopping.wait(1.5 * SAMPLE_SECONDS - (time.time() + SAMPLE_SECONDS / 2) % SAMPLE_SECONDS):
            after, seconds = (self.enqueued, self.completed), time.monotonic() - at
            rates = [(new - old) / seconds for new, old in zip(after, before, strict=True)]
            before, at = after, at + seconds
            moment = now()
            for metric, value, window in (
                *((f"claim_p{share}_ms", self.percentile(share / 100), WINDOW_SECONDS) for share in (50, 95, 99)),
                ("enqueue_rate", rates[0], seconds),
                ("completion_rate", rates[1], seconds),
                ("queue_depth", self.depth, 0),
                ("producer_target_rate", target_rate(), 0),
            ):
                if metric not in GLOBAL or INSTANCE == 0:
                    self.emit(
                        t=moment, kind="adapter", subject_kind="adapter", subject="", metric=metric, value=value,
                        window_s=window,
                    )  # fmt: skip
            with self._lock:
                self._waits.append(Counter())

    def batches(self) -> Iterator[int]:
        """The number of jobs to enqueue next, each time when they are due."""
        if os.environ.get("PRODUCER_MODE") == "depth-target":
            return self._up_to_depth()
        return self._told() if os.environ.get("PRODUCER_PACING") == "harness" else self._at_rate()

    def _told(self) -> Iterator[int]:
        """As the harness says on stdin."""
        for line in sys.stdin:
            word, _, number = line.partition(" ")
            if word == "ENQUEUE":
                yield int(number)

    def _at_rate(self) -> Iterator[int]:
        """At the wall clock's pace: jobs that a stall delayed follow at once."""
        credit, at = 0.0, time.monotonic()
        while not self.stopping.wait(BATCH_SECONDS):
            elapsed = time.monotonic() - at
            credit, at = credit + target_rate() * elapsed, at + elapsed
            while credit >= 1 and not self.stopping.is_set():
                yield (batch := min(int(credit), BATCH_MAX))
                credit -= batch

    def _up_to_depth(self) -> Iterator[int]:
        while not self.stopping.is_set():
            if (batch := min(BATCH_MAX, TARGET_DEPTH - self.depth)) > 0:
                yield batch
                self.depth += batch  # until the next count
            else:
                self.stopping.wait(0.01)

    def watch_depth(self, count: Callable[[], int]) -> None:
        """Count the waiting jobs up to four times a second until it stops, for at most a tenth of the time."""
        took = 0.0
        while not self.stopping.wait(max(0.25, 9 * took)):
            began = time.monotonic()
            self.depth = count()
            took = time.monotonic() - began


def target_rate() -> float:
    """Jobs a second; the harness changes it in a file while it runs."""
    path = os.environ.get("PRODUCER_RATE_CONTROL_FILE")
    text = Path(path).read_text().strip() if path and os.path.exists(path) else ""
    return float(text or RATE)  # empty: it is being written


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
