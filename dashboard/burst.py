"""A worker that a page starts on the web server's host: one at a time, with time and task limits.

It is a child of the web process, and the kernel ends it when that process ends. `run_locked` allows one at a time
across machines, and stores its output and exit status. Its guard process ends what a death would leave behind.
"""

import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from dashboard import conf, project
from dashboard.processes import bound
from tasks import conf as queue_settings

NAME = "rowlock-burst"
GRACE_SECONDS = 25.0  # between SIGTERM and SIGKILL, for the current task: longer than a worker's own grace
KEPT_CHARACTERS = 2000


@dataclass(frozen=True)
class Burst:
    """The parameters of a burst worker: claim strategy, one queue (None: all), and limits."""

    strategy: str
    queue_name: str | None = None
    max_tasks: int = 1000
    limit_seconds: int = 60

    @property
    def words(self) -> list[str]:
        """The command line, as words after `manage.py`."""
        queue = ["--queue", self.queue_name] if self.queue_name else []
        worker = ["run_worker", "--burst", "--strategy", self.strategy, *queue, "--max-tasks", str(self.max_tasks)]
        return ["run_locked", NAME, "--", *worker]


@dataclass
class Running:
    """A burst of this process. `exit_status` and `output` (its end) are set once it has ended."""

    burst: Burst
    started: float = field(default_factory=time.monotonic)
    pid: int | None = None
    exit_status: int | None = None
    was_cut_short: bool = False
    output: str = ""

    @property
    def is_over(self) -> bool:
        return self.exit_status is not None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


_lock = threading.Lock()
_latest: Running | None = None


def is_allowed() -> bool:
    """The setting BURST; if it is unset, the same as ROWLOCK_LAB."""
    configured = queue_settings.get("BURST")
    return bool(conf.get("LAB") if configured is None else configured)


def latest() -> Running | None:
    """The running or latest burst of this process."""
    return _latest


def start(burst: Burst) -> bool:
    """Start the burst. Returns False if this process already runs one."""
    global _latest
    with _lock:
        if _latest is not None and not _latest.is_over:
            return False
        _latest = Running(burst)
        # The kernel ends the child with the thread that started it, so this thread lives as long as the child.
        threading.Thread(target=_see_through, args=(_latest,), name="burst", daemon=True).start()
    return True


def _see_through(running: Running) -> None:
    """Start the child, wait for it, and end it at its limit; it is always reaped here."""
    argv = bound(project.manage(*running.burst.words))
    place: dict[str, Any] = {"cwd": project.home(), "env": project.environment()}
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        with subprocess.Popen(argv, text=True, errors="replace", **pipes, **place) as child:
            running.pid = child.pid
            steps = ((running.burst.limit_seconds, child.terminate), (GRACE_SECONDS, child.kill), (None, child.kill))
            for seconds, end in steps:
                try:
                    running.output = child.communicate(timeout=seconds)[0][-KEPT_CHARACTERS:]
                    break
                except subprocess.TimeoutExpired:
                    running.was_cut_short = True
                    end()
            running.exit_status = child.returncode
    except OSError as error:
        running.output = str(error)
        running.exit_status = 1
