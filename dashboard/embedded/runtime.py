"""The folder of one run: its socket, and copies of the binaries where those are needed.

It lies in /tmp whatever TMPDIR says: a socket's path may have about 100 characters and PostgreSQL splits it at commas,
and the server's user must be able to pass through every parent.
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
MARK = ".rowlock-run"  # no folder without it is ever removed, whatever its name
# Safe in spite of everybody's right to write there: mkdtemp makes an unpredictable name with mode 0700.
PARENTS = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  # nosec B108


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder, locked while it is used and removed at the end; removes what killed runs left first.

    The lock tells later runs that this one lives; systemd-tmpfiles, which removes what is old, respects it too.
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
    """Makes a folder that only `account` may enter (None: this process's user), and root, whom no mode stops."""
    path.mkdir(mode=0o700)
    if account:
        os.chown(path, account.uid, account.gid)
        path.parent.chmod(0o711)  # the account passes through, and lists nothing
    return path


def new_locked_folder() -> tuple[int, Path]:
    """A new folder and the descriptor that locks it; tries again when another run's sweep was faster than our lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent()))
        lock = locked(path)
        if lock is not None:
            return lock, path


def parent() -> Path:
    """Where runs put their folders; one that forbids to execute files serves only when there is no other."""
    writable = [folder for folder in PARENTS if os.access(folder, os.W_OK | os.X_OK)]
    if not writable:
        raise ServerError(f"None of {', '.join(map(str, PARENTS))} is writable; the server's socket needs one.")
    return next((folder for folder in writable if not forbids_execution(folder)), writable[0])


def forbids_execution(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))


def locked(folder: Path) -> int | None:
    """The descriptor that locks `folder`; None when another process has it or has just removed it."""
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
    """Removes the folders that runs of this user left when they were killed."""
    for folder in (found for place in PARENTS for found in place.glob(f"{PREFIX}*")):
        lock = locked(folder)
        if lock is None:
            continue
        if os.fstat(lock).st_uid == os.getuid() and (folder / MARK).exists():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
