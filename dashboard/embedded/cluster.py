"""A server's data folder: its owner, a path by which the owner reaches it, and its creation."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dashboard.embedded.exceptions import ServerError
from dashboard.embedded.ownership import DATABASE, USER
from dashboard.processes import Account, bound

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
