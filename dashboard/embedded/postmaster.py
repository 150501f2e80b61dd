"""A server's main process seen from outside: readiness, leftovers of a killed owner, and stopping."""

import contextlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

POLL_SECONDS = 0.02
# Fast shutdown, then immediate shutdown (the next start replays the log), then SIGKILL.
STOP = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))


def is_ready(data: Path, pid: int) -> bool:
    """True if the server with this pid accepts connections; line 8 of its pid file says so."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def stop(process: psutil.Process, steps: Sequence[tuple[signal.Signals, float]] = STOP) -> None:
    """Stop a server and wait until it is gone.

    Args:
        process: its main process.
        steps: the signals to send, and the seconds to wait after each.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        for number, patience_seconds in steps:
            process.send_signal(number)
            if ends_within(process, patience_seconds):
                return


def ends_within(process: psutil.Process, seconds: float) -> bool:
    """Wait for a process that need not be our child; a zombie counts as ended."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
    return True


def clear_leftover(data: Path) -> None:
    """Prepare a data folder whose owner was killed: stop its server, or remove a stale pid file.

    If another process has the pid in a stale file, PostgreSQL would refuse to start.
    """
    pid_file = data / "postmaster.pid"
    try:
        process = psutil.Process(int(pid_file.read_text().splitlines()[0]))
    except (FileNotFoundError, ValueError, IndexError, psutil.NoSuchProcess):
        return  # PostgreSQL itself notices that nobody is there
    if works_in(process, data):
        stop(process)
    else:
        pid_file.unlink(missing_ok=True)


def works_in(process: psutil.Process, data: Path) -> bool:
    """True if this process is the server of `data`: PostgreSQL's working directory is its data folder."""
    try:
        return process.name() == "postgres" and Path(process.cwd()).samefile(data)
    except (psutil.Error, FileNotFoundError):
        return False
