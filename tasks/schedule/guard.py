"""The parent of a command that must not outlive its lock. Run as a script: `guard.py LINK DEADLINE PROGRAM [ARG…]`.

If `run_locked` is frozen or killed with -9, it can stop nothing, while another holder takes its lock. So the command is
a child of this process and shares its process group. DEADLINE, by this machine's monotonic clock, is the end of the
time for which the lock is certainly held. `run_locked` sends later deadlines (doubles) over the socket LINK. At the
deadline, or when the socket closes, this process ends the group.
"""

import os
import resource
import select
import signal
import struct
import sys
import time

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # like shells
# A dead holder's lock is free 0.3 s after its death.
LAST_GRACE_SECONDS = 0.2
DEADLINE = struct.Struct("d")
NOTICED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def spawn(argv: list[str]) -> int:
    """Start the command; returns its process id. Exits with 127 or 126 when it cannot be started."""
    try:
        return os.posix_spawnp(argv[0], argv, os.environ, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def watch(link: int, deadline: float, child: int, wake: int) -> int:
    """Return the wait status of the command; end the group if the lock may be lost first."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            end_group()
        ready = select.select([link, wake], [], [], left)[0]
        if link in ready:
            sent = os.read(link, 64 * DEADLINE.size)
            if not sent:
                end_group()
            [deadline] = DEADLINE.unpack(sent[-DEADLINE.size :])
        if wake in ready:
            os.read(wake, 512)
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status


def end_group() -> None:
    """End the command, everything that it started in its group, and this process."""
    os.killpg(0, signal.SIGTERM)
    time.sleep(LAST_GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


def end_like(status: int) -> None:
    """Exit like the command: with its status, or by its signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def main(link: int, deadline: float, argv: list[str]) -> None:
    os.set_inheritable(link, False)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in NOTICED:
        signal.signal(number, lambda number, frame: None)  # not SIG_IGN, which the command would inherit
    end_like(watch(link, deadline, spawn(argv), reader))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
