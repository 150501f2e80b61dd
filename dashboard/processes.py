"""Child processes that end when their parent does, however it ends.

Run as a script this file is the step between fork and exec: it gives up root when told to, asks the kernel for a signal
at the parent's death (Linux only) and becomes the program. `preexec_fn` could do so in a fork of this very interpreter,
which is unsafe beside threads; CPython warns of it from 3.12 on.
"""

import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Account:
    """A system user that runs a program in our place."""

    name: str
    uid: int
    gid: int

    @classmethod
    def of(cls, uid: int) -> "Account":
        """The account with this numeric id; KeyError when the system has none."""
        entry = pwd.getpwuid(uid)
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid)

    @classmethod
    def named(cls, name: str) -> "Account":
        """The account with this name; KeyError when the system has none."""
        return cls.of(pwd.getpwnam(name).pw_uid)


def bound(
    argv: Sequence[str], *, account: Account | None = None, at_parents_death: signal.Signals = signal.SIGTERM
) -> list[str]:
    """The command line that runs `argv` (program with its path) as a process which ends with the caller.

    The kernel watches the *thread* that starts it, so start it from one that lives as long as it should.
    """
    user = f"{account.uid}:{account.gid}" if account else ""
    launcher = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    return [*launcher, str(os.getpid()), str(int(at_parents_death)), user, *argv]


def become(parent: int, at_parents_death: int, user: str, argv: list[str]) -> None:
    """Turns this process into `argv`, tied to `parent` (process id), as `user` ("uid:gid", or empty for the same)."""
    if user:
        drop_root(*map(int, user.split(":")))
    die_with(parent, at_parents_death)  # after the change of user, which would clear it
    # Python ignores it from its start on; the program expects the default.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # To become another program is the whole point, and no shell is wanted.
    os.execv(argv[0], argv)  # noqa: S606  # nosec B606


def die_with(parent: int, at_parents_death: int) -> None:
    """From now on the kernel sends this process the signal when its parent ends (Linux); SystemExit when it has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, at_parents_death)
    if os.getppid() != parent:
        raise SystemExit("The process that asked for this one is gone.")


def drop_root(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
