"""A server's main process, seen from outside: is it ready, is one left over, and how one is stopped."""

import contextlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

POLL_SECONDS = 0.02
# Fast shutdown, then immediate shutdown (the next start replays the log), then no choice.
STOP = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))


def is_ready(data: Path, pid: int) -> bool:
    """Whether the server with this process id accepts connections; its own pid file says so in line 8."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def stop(process: psutil.Process, steps: Sequence[tuple[signal.Signals, float]] = STOP) -> None:
    """Stops a server and waits until it is gone.

    Args:
        process: its main process.
        steps: the signals to send, and for how many seconds to wait after each.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        for number, patience_seconds in steps:
            process.send_signal(number)
            if ends_within(process, patience_seconds):
                return


def ends_within(process: psutil.Process, seconds: float) -> bool:
    """Waits for a process that need not be our child; one that nobody has reaped yet has ended too."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
    return True


def clear_leftover(data: Path) -> None:
    """Readies a data folder whose last owner was killed: waits for its server's end, drops a pid file that lies.

    A stale pid file whose number was given to another process since would make PostgreSQL refuse to start.
    """
    pid_file = data / "postmaster.pid"
    try:
        process = psutil.Process(int(pid_file.read_text().splitlines()[0]))
    except (FileNotFoundError, ValueError, IndexError, psutil.NoSuchProcess):
        return  # PostgreSQL itself sees that nobody is there
    if works_in(process, data):
        stop(process)
    else:
        pid_file.unlink(missing_ok=True)


def works_in(process: psutil.Process, data: Path) -> bool:
    """Whether this process is the server of `data`: PostgreSQL makes its data folder the working directory."""
    try:
        return process.name() == "postgres" and Path(process.cwd()).samefile(data)
    except (psutil.Error, FileNotFoundError):
        return False
