"""A server's main process, seen from outside: is it ready, is one left over, and how one is stopped."""

import contextlib
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

# Fast shutdown, then immediate shutdown (the next start replays the log), then no choice.
STOP = ((signal.SIGINT, 20), (signal.SIGQUIT, 10), (signal.SIGKILL, 10))


def is_ready(data: Path, pid: int) -> bool:
    """Whether the server with this process id accepts connections; its own pid file says so in line 8."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def stop(
    process: "subprocess.Popen[bytes] | psutil.Process", steps: Sequence[tuple[signal.Signals, float]] = STOP
) -> None:
    """Stops a server and waits until it is gone.

    Args:
        process: its main process.
        steps: the signals to send, and for how many seconds to wait after each.
    """
    for number, patience_seconds in steps:
        with contextlib.suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
            process.wait(patience_seconds)
            return


def clear_leftover(data: Path) -> None:
    """Readies a data folder whose last owner was killed: waits for its server's end, drops a pid file that lies.

    A stale pid file whose number was given to another process since would make PostgreSQL refuse to start.
    """
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
    except (FileNotFoundError, ValueError, IndexError):
        return
    with contextlib.suppress(psutil.NoSuchProcess):  # then PostgreSQL sees for itself that the file is stale
        process = psutil.Process(pid)
        if works_in(process, data):
            stop(process)
        else:
            (data / "postmaster.pid").unlink(missing_ok=True)


def works_in(process: psutil.Process, data: Path) -> bool:
    """Whether this process is the server of `data`: PostgreSQL makes its data folder the working directory."""
    try:
        return process.name() == "postgres" and Path(process.cwd()).samefile(data)
    except (psutil.Error, FileNotFoundError):
        return False
