"""The folder of one run: its socket, and copies of the binaries if needed.

It is in /tmp whatever TMPDIR says. A socket's path is limited to about 100 characters, and PostgreSQL splits it at
commas. The server's user must also be able to pass every parent.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dashboard.embedded.exceptions import ServerError
from dashboard.processes import Account

PREFIX = "rowlock-run-"
MARK = ".rowlock-run"  # a folder without this file is never removed
# Safe although everybody may write there: mkdtemp makes an unpredictable name with mode 0700.
PARENTS = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  # nosec B108


@contextmanager
def folder() -> Iterator[Path]:
    """A new locked folder, removed at the end; first removes folders of killed runs.

    The lock shows later runs that this one lives; systemd-tmpfiles respects it too.
    """
    sweep()
    lock, path = new_locked_folder()
    try:
        (path / MARK).touch()
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def private_folder(path: Path, account: Account | None) -> Path:
    """Make a folder that only `account` (None: this process's user) and root may enter."""
    path.mkdir(mode=0o700)
    if account:
        os.chown(path, account.uid, account.gid)
        path.parent.chmod(0o711)  # the account can pass, but not list
    return path


def new_locked_folder() -> tuple[int, Path]:
    """A new folder and the descriptor that locks it; retries if another run's sweep came before our lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent()))
        lock = locked(path)
        if lock is not None:
            return lock, path


def parent() -> Path:
    """The parent of run folders; one mounted `noexec` is used only if there is no other."""
    writable = [folder for folder in PARENTS if os.access(folder, os.W_OK | os.X_OK)]
    if not writable:
        raise ServerError(f"None of {', '.join(map(str, PARENTS))} is writable; the server's socket needs one.")
    return next((folder for folder in writable if not forbids_execution(folder)), writable[0])


def forbids_execution(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))


def locked(folder: Path) -> int | None:
    """The descriptor that locks `folder`; None if another process holds it or has just removed it."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.exists():
            return lock
    os.close(lock)
    return None


def sweep() -> None:
    """Remove the folders that killed runs of this user left."""
    for folder in (found for place in PARENTS for found in place.glob(f"{PREFIX}*")):
        lock = locked(folder)
        if lock is None:
            continue
        if os.fstat(lock).st_uid == os.getuid() and (folder / MARK).exists():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
