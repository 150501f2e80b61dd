"""The named pipe in which measured processes tell what they do (`peers/wire.py`), as the benchmark reads it."""

import itertools
import os
import select
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.benchmarks.peers.environment import Unfit

PATIENCE_SECONDS = 60.0
Message = list[str]


class Pipe:
    """`path` is given to the processes in BENCH_PIPE."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pipe"
        os.mkfifo(self.path)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)  # a writer of our own: it never ends
        self._rest = b""

    def close(self) -> None:
        os.close(self._descriptor)

    def forget(self) -> None:
        """Drop what was told so far."""
        while self._lines(0.0):
            pass

    def messages(
        self, *, patience: float = PATIENCE_SECONDS, check: Callable[[], object] = lambda: None
    ) -> Iterator[Message]:
        """Each message as its words. Raises Unfit when nothing comes for `patience` seconds, or what `check` raises."""
        heard = time.monotonic()
        while True:
            lines = self._lines(0.5)
            if lines:
                heard = time.monotonic()
            elif time.monotonic() - heard > patience:
                raise Unfit(f"it told nothing for {patience:.0f} s")
            else:
                check()
            for line in lines:
                yield line.decode().split()

    def await_word(self, word: str, times: int = 1, *, check: Callable[[], object] = lambda: None) -> list[Message]:
        """The first so many messages of this kind; others are dropped."""
        found: list[Message] = []
        for message in self.messages(check=check):
            if message[0] == word:
                found.append(message[1:])
            if len(found) == times:
                break
        return found

    def _lines(self, seconds: float) -> list[bytes]:
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return []
        *lines, self._rest = (self._rest + os.read(self._descriptor, 1 << 16)).split(b"\n")
        return lines


class Counts:
    """What each process has counted, and when: pairs of seconds and the sum until then."""

    def __init__(self) -> None:
        self.series: dict[str, list[tuple[float, int]]] = defaultdict(list)

    def add(self, pid: str, counted: str, at: str) -> None:
        self.series[pid].append((float(at), int(counted)))

    @property
    def total(self) -> int:
        return sum(points[-1][1] for points in self.series.values())

    def rate(self) -> float:
        """A second, while all of them were at work: from the last one's first task to the first one's last.

        When there was no such time worth the name, over the whole of it.
        """
        began = max(points[0][0] for points in self.series.values())
        ended = min(points[-1][0] for points in self.series.values())
        whole_began = min(points[0][0] for points in self.series.values())
        whole_ended = max(points[-1][0] for points in self.series.values())
        if ended - began < 0.5 * (whole_ended - whole_began):
            return self.total / max(whole_ended - whole_began, 1e-3)
        done = sum(counted_at(points, ended) - counted_at(points, began) for points in self.series.values())
        return done / max(ended - began, 1e-3)


def counted_at(points: list[tuple[float, int]], at: float) -> float:
    """The sum at a moment, on the straight line between what was told before and after it."""
    if at >= points[-1][0]:
        return points[-1][1]
    for (before, low), (after, high) in itertools.pairwise(points):
        if before <= at <= after:
            return low + (high - low) * (at - before) / max(after - before, 1e-9)
    return points[0][1]
