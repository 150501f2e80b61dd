"""Tasks that wait for another service: tasks a second and memory, a thousand at once in a process.

The service is a local HTTP server that really answers, after 5 or 100 ms. The ideal of 100 ms is ten thousand a second.
"""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import psutil

from tests.benchmarks import alone
from tests.benchmarks.bench import Bench
from tests.benchmarks.drain import notes
from tests.benchmarks.peers import environment
from tests.benchmarks.peers.environment import HERE, Unfit
from tests.benchmarks.pipe import Counts
from tests.benchmarks.report import Part, Table, rates
from tests.benchmarks.subject import CELERY, PEERS, Crew, Subject
from tests.dashboard.sites import free_port

TASKS = {5: 20_000, 100: 20_000}  # by the milliseconds of a wait
AT_ONCE = 1000
LOADS = list(itertools.product(TASKS, (1, 2)))
SERIAL = ("Celery prefork", "django-tasks-db")  # one at a time in a process: they cannot do this
SAMPLE_SECONDS = 0.1
MIB = 2**20


class Memory:
    """The most memory that the processes of a crew held together, sampled in a thread: the unique share of each."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.first = self.most = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ends.wait(SAMPLE_SECONDS):
            self.most = max(self.most, sum(held(process.pid) for process, _ in self.crew.members) / MIB)


def held(pid: int) -> int:
    """Bytes of a process and its children that nobody else shares; 0 once it is gone."""
    try:
        ours = psutil.Process(pid)
        return sum(int(one.memory_full_info().uss) for one in (ours, *ours.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


@contextmanager
def service(scene: Bench) -> Iterator[int]:
    """A running server; its port."""
    port = free_port()
    try:
        python = str(environment.python()) if scene.options.peers != [] else sys.executable
    except Unfit:
        python = sys.executable
    with subprocess.Popen([python, str(HERE / "http_wait.py"), str(port)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"serving\n"
        try:
            yield port
        finally:
            process.terminate()


def waited(subject: Subject, tasks: int, workers: int, memory: list[float]) -> float:
    """Tasks a second of so many processes; their memory is added to the list, in MiB. Raises Unfit."""
    subject.fill("wait", tasks)
    subject.pipe.forget()
    counts = Counts()
    with subject.crew() as crew:
        for _ in range(workers):
            subject.start_worker(crew, AT_ONCE, "wait")
        with Memory(crew) as sampled:
            for message in subject.pipe.messages(check=crew.check):
                if message[0] == "count":
                    counts.add(*message[1:])
                    if counts.total >= tasks:
                        break
        memory.append(sampled.most / workers)
    return counts.rate()


def run(scene: Bench) -> Part:
    peers = [peer for peer in (*PEERS, *CELERY) if peer.name not in SERIAL]
    subjects = scene.subjects(peers=peers)
    part = scene.part("waiting", "Tasks that wait for another service: tasks a second, a thousand at once in a process")
    memory: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    with service(scene) as port:
        os.environ["BENCH_HTTP_PORT"] = str(port)
        for milliseconds, workers in LOADS:
            os.environ["BENCH_WAIT_MS"] = str(milliseconds)
            compare(scene, part, subjects, milliseconds, workers, memory)
    table = Table("Memory of a process with a thousand tasks at once", ["MiB", "most"])
    table.rows = [
        [name, max(found)] for name, found in sorted(memory.items(), key=lambda item: max(item[1], default=0)) if found
    ]
    part.tables.append(table)
    part.figures["memory in MiB"] = memory
    part.notes = [
        "Rowlock runs coroutines. Memory is what no other process shares.",
        f"{' and '.join(SERIAL)} run one task at a time in a process and take no part.",
        *notes(scene, subjects, {subject.name: f"up to {AT_ONCE:,} at a time" for subject in subjects}),
    ]
    return part


def compare(
    scene: Bench, part: Part, subjects: list[Subject], milliseconds: int, workers: int, memory: dict[str, list[float]]
) -> None:
    """One table: all of them in turn."""
    tasks = min(scene.tasks(TASKS[milliseconds]), TASKS[milliseconds])
    measures: dict[str, Callable[[], float]] = {
        subject.name: partial(waited, subject, tasks, workers, memory[subject.name]) for subject in subjects
    }
    label = f"tasks that wait {milliseconds} ms, {workers} process{'es'[: 2 * workers - 2]}"
    figures = scene.alternate(label, measures, scene.rounds(), "tasks/s")
    part.tables.append(rates(f"{tasks:,} {label}", "tasks a second", figures))
    part.figures[label] = figures


if __name__ == "__main__":
    sys.exit(alone.main("waiting", sys.argv[1:], ("--tasks", "--rounds")))
