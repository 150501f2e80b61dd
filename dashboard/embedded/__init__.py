"""The PostgreSQL that `manage.py up` runs for this checkout if DATABASE_URL is unset, and who owns it.

Its home (`var/postgres`) keeps the data, and a lock file that names its owner. Each run has a folder of its own for
the socket and, if needed, copies of the binaries (`cluster`). Every process imports this package with the settings, so
only processes that start a server import `dashboard.embedded.server`. It needs only the standard library.
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote


class ServerError(Exception):
    """The embedded PostgreSQL is unavailable."""


USER = DATABASE = "rowlock"
LOCK = "lock"  # in its text the owner names itself
STOPPING = "stopping"
STOP_PATIENCE_SECONDS = 60
POLL_SECONDS = 0.1


def database_url(socket_folder: str) -> str:
    """The URL of the server whose socket is in this folder."""
    return f"postgres://{USER}@/{DATABASE}?host={quote(socket_folder, safe='')}"


@contextmanager
def held(home: Path, runs: str = "") -> Iterator[None]:
    """Own `home` (created if missing), as a process that `runs` describes.

    Raises ServerError if another process owns it; the message names that process.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # not inherited, so no program keeps the lock
    except PermissionError as error:
        raise ServerError(
            f"{error.filename} belongs to another user: run this as that user, or remove the folder."
        ) from error
    try:
        take(lock, home)
        (home / LOCK).write_text(f"process {os.getpid()} ({runs})")
        yield
    finally:
        os.close(lock)


def take(lock: int, home: Path) -> None:
    """Take the lock: wait if the owner is stopping, else raise ServerError at once."""
    deadline = time.monotonic() + STOP_PATIENCE_SECONDS
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owner, _, state = (home / LOCK).read_text().partition("\n")
        if state != STOPPING or time.monotonic() > deadline:
            who = owner or "a process that is just starting"
            raise ServerError(f"{home} is in use by {who}: use that one, or stop it first.")
        time.sleep(POLL_SECONDS)


def publish_stopping(home: Path) -> None:
    """Publish, as the owner of `home`, that it will be free soon."""
    with (home / LOCK).open("a") as lock:
        lock.write(f"\n{STOPPING}")


def home(var_dir: Path) -> Path:
    """The folder of the server's data and lock, for a checkout with this `var` folder."""
    return var_dir / "postgres"


def pid_file(data: Path) -> list[str]:
    """The lines of PostgreSQL's pid file: the pid is the first, the socket's folder the fifth, the state the eighth.

    Empty if no server runs, or if this user may not know.
    """
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return []


def running_url(var_dir: Path) -> str | None:
    """The URL of the server that runs for this `var` folder, or None. A pid file may be stale: it tries the socket."""
    lines = pid_file(home(var_dir) / "data")
    if len(lines) < 5:
        return None
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        is_listening = client.connect_ex(f"{lines[4]}/.s.PGSQL.5432") == 0
    return database_url(lines[4]) if is_listening else None
