"""What every part is given: a server that syncs to disk, who takes part, and rounds that alternate between them."""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from dashboard.embedded.server import EmbeddedServer
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.pipe import Pipe
from tests.benchmarks.report import Part, left_out
from tests.benchmarks.subject import PEERS, Peer, Rowlock, Subject
from tests.postgres import throw_away_server
from tests.redis import throw_away_redis

DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "min_wal_size": "1GB"}
MEBIBYTE_OF_WAL = "SELECT pg_logical_emit_message(false, 'bench', repeat('x', 1024 * 1024))"


@dataclass
class Options:
    """None: what the part finds right. `peers`: names, in lower case; None: all."""

    rounds: int | None = None
    tasks: int | None = None
    seconds: float | None = None
    finished: int | None = None
    peers: list[str] | None = None


@dataclass
class Bench:
    """One part's surroundings. `excuses` say who was left out and why."""

    options: Options
    server: EmbeddedServer
    pipe: Pipe
    excuses: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def subjects(self, names: Sequence[str] | None = None, peers: Sequence[Peer] = PEERS) -> list[Subject]:
        """Rowlock and every peer that can be prepared here, of those that are wanted."""
        found: list[Subject] = [Rowlock(self.server.url, self.pipe)]
        found[0].prepare()
        for peer in peers:
            if self.wants(peer) and (names is None or peer.name in names):
                try:
                    subject = Subject(peer, self.server.url, self.pipe)
                    subject.prepare()
                    found.append(subject)
                except Unfit as reason:
                    self.excuse(peer.name, reason)
        return found

    def wants(self, peer: Peer) -> bool:
        return self.options.peers is None or peer.name.lower() in self.options.peers

    def part(self, name: str, title: str) -> Part:
        """An empty part of the report that knows which server it was measured on."""
        with psycopg.connect(self.server.url) as connection:
            version = connection.info.parameter_status("server_version")
        return Part(name, title, server=f"PostgreSQL {version}")

    def excuse(self, name: str, reason: Unfit) -> None:
        self.say(f"{name} is left out: {reason}")
        self.excuses[name] = left_out(name, reason)

    def rounds(self, default: int = 3) -> int:
        return self.options.rounds or default

    def tasks(self, default: int) -> int:
        return self.options.tasks or default

    def seconds(self, default: float) -> float:
        return self.options.seconds or default

    def alternate(
        self, label: str, measures: Mapping[str, Callable[[], float]], rounds: int, unit: str = ""
    ) -> dict[str, list[float]]:
        """The figures of each measure, taken in turn: A B C A B C. Who cannot be measured is excused and dropped."""
        figures: dict[str, list[float]] = {name: [] for name in measures}
        for number in range(1, rounds + 1):
            for name, measure in measures.items():
                if name not in figures:
                    continue
                try:
                    figures[name].append(measure())
                except Unfit as reason:
                    self.excuse(name, reason)
                    del figures[name]
                else:
                    self.say(f"{label}, round {number} of {rounds}: {name} {figures[name][-1]:,.4g} {unit}")
        return figures

    def say(self, text: str) -> None:
        """Progress, on stderr."""
        print(f"{time.monotonic() - self.began:>6.0f} s  {text}", file=sys.stderr, flush=True)


def wear_in(url: str) -> None:
    """Let the server fill a gigabyte of WAL, whose files it then uses again, as any does that has been at work.

    On a new one every 16 MiB are a file that is made and filled with zeros first: who writes most waits most for that.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(1024):
            connection.execute(MEBIBYTE_OF_WAL)
        connection.execute("CHECKPOINT")


@contextlib.contextmanager
def bench(options: Options, **settings: str) -> Iterator[Bench]:
    """A server of the part's own, with these settings beside those that keep what is committed; and a Redis."""
    with throw_away_server(**{**DURABLE, **settings}) as server, throw_away_redis() as redis:
        wear_in(server.url)
        os.environ["BENCH_REDIS"] = f"redis+socket://{redis.socket}"
        folder = Path(tempfile.mkdtemp(prefix="bench-"))
        pipe = Pipe(folder)
        try:
            yield Bench(options, server, pipe)
        finally:
            pipe.close()
            shutil.rmtree(folder)
