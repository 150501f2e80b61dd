"""Child processes that end when their parent does, however it ends.

Run as a script, this file is the step between fork and exec. It drops root if asked, and asks the kernel for a signal
at the parent's death (Linux only). Then it becomes the program. `preexec_fn` would do so in a fork of this interpreter,
which is unsafe with threads; CPython warns of it from 3.12 on.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pwd import struct_passwd

PR_SET_PDEATHSIG = 1


def bound(
    argv: Sequence[str], *, account: struct_passwd | None = None, at_parents_death: signal.Signals = signal.SIGTERM
) -> list[str]:
    """The command line that runs `argv` (program with its path) as a process that ends with the caller.

    The kernel watches the *thread* that starts it, so start it from a thread that lives long enough. `account` is the
    user who runs it instead of ours.
    """
    user = f"{account.pw_uid}:{account.pw_gid}" if account else ""
    launcher = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    return [*launcher, str(os.getpid()), str(int(at_parents_death)), user, *argv]


def become(parent: int, at_parents_death: int, user: str, argv: list[str]) -> None:
    """Turn this process into `argv`, tied to `parent` (pid), as `user` ("uid:gid", empty: unchanged)."""
    if user:
        uid, gid = map(int, user.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    die_with(parent, at_parents_death)  # after the change of user, which would clear it
    # Python ignores SIGPIPE from its start; the program expects the default.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # Becoming another program is the purpose, and no shell is involved.
    os.execv(argv[0], argv)  # noqa: S606  # nosec B606


def die_with(parent: int, at_parents_death: int) -> None:
    """Have the kernel signal this process when its parent ends (Linux). Raises SystemExit if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, at_parents_death)
    if os.getppid() != parent:
        raise SystemExit("The process that asked for this one is gone.")


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
