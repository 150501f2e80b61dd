"""The PostgreSQL that `manage.py up` runs for this checkout if DATABASE_URL is unset, and who owns it.

Its home (`var/postgres`) keeps the data, the owner's lock and the owner's record. Each run has a folder of its own for
the socket and, if needed, copies of the binaries (`cluster`). Every process imports this package with the settings, so
only processes that start a server import `dashboard.embedded.server`. It needs only the standard library.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import quote


class ServerError(Exception):
    """The embedded PostgreSQL is unavailable."""


USER = DATABASE = "rowlock"
RECORD = "owner.json"
STOP_PATIENCE_SECONDS = 60
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Owner:
    """The owner's record: its pid, its server's socket folder, a description of the process, and if it is stopping."""

    pid: int
    socket_folder: str
    runs: str
    is_stopping: bool = False

    def __str__(self) -> str:
        return f"process {self.pid} ({self.runs})"


def database_url(socket_folder: str) -> str:
    """The URL of the server whose socket is in this folder."""
    return f"postgres://{USER}@/{DATABASE}?host={quote(socket_folder, safe='')}"


@contextmanager
def held(home: Path) -> Iterator[None]:
    """Own `home` (created if missing); the owner's record is removed at the end.

    Raises ServerError if another process owns it; the message names that process.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)  # not inherited, so no program keeps the lock
    except PermissionError as error:
        raise ServerError(
            f"{error.filename} belongs to another user: run this as that user, or remove the folder."
        ) from error
    try:
        take(lock, home)
        (home / RECORD).unlink(missing_ok=True)  # of a killed owner
        try:
            yield
        finally:
            (home / RECORD).unlink(missing_ok=True)
    finally:
        os.close(lock)


def take(lock: int, home: Path) -> None:
    """Take the lock: wait if the owner is stopping, else raise ServerError at once."""
    deadline = time.monotonic() + STOP_PATIENCE_SECONDS
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owner = recorded(home)
        if owner is None or not owner.is_stopping or time.monotonic() > deadline:
            who = owner or "a process that is just starting"
            raise ServerError(f"{home} is in use by {who}: use that one, or stop it first.")
        time.sleep(POLL_SECONDS)


def publish_stopping(home: Path) -> None:
    """Publish, as the owner of `home`, that it will be free soon."""
    if owner := recorded(home):
        record(home, replace(owner, is_stopping=True))


def record(home: Path, owner: Owner) -> None:
    """Write the owner's record atomically, because other processes may read it at any moment."""
    fresh = home / f"{RECORD}.new"
    fresh.write_text(json.dumps(asdict(owner)))
    fresh.replace(home / RECORD)


def recorded(home: Path) -> Owner | None:
    """The recorded owner of `home`, which may have died since."""
    try:
        return Owner(**json.loads((home / RECORD).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def home(var_dir: Path) -> Path:
    """The folder of the server's data, lock and record, for a checkout with this `var` folder."""
    return var_dir / "postgres"


def running_url(var_dir: Path) -> str | None:
    """The URL of the server that runs for this `var` folder, or None. The record may be stale: it tries the socket."""
    owner = recorded(home(var_dir))
    if owner is None:
        return None
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        is_listening = client.connect_ex(f"{owner.socket_folder}/.s.PGSQL.5432") == 0
    return database_url(owner.socket_folder) if is_listening else None
