"""Under a service manager: a worker says when it is ready, that it lives, and that it stops."""

import contextlib
import signal
import socket

import pytest


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        yield manager


def test_it_is_told_that_a_worker_is_ready_lives_and_stops(database, start_worker, manager):
    worker = start_worker(NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC=300_000)
    assert manager.recv(100) == b"READY=1"
    assert [manager.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    worker.send(signal.SIGTERM)
    said = iter(lambda: manager.recv(100), b"STOPPING=1")
    assert set(said) <= {b"WATCHDOG=1"}
    assert worker.wait() == 0


def test_of_a_worker_that_hangs_nothing_is_heard(database, start_worker, manager):
    worker = start_worker(NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC=300_000)
    assert [manager.recv(100) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
    worker.send(signal.SIGSTOP)
    manager.settimeout(1.5)
    with pytest.raises(TimeoutError):  # what it said before the signal came, and then nothing
        list(iter(lambda: manager.recv(100), b"never"))
    with contextlib.suppress(ProcessLookupError):
        worker.send(signal.SIGCONT)
