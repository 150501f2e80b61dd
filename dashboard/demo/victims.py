"""The demo's worker processes, started to be killed with SIGKILL, each in a process group of its own."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import psutil
import psycopg
from django.conf import settings

from dashboard.demo import VICTIM
from dashboard.processes import bound
from tasks.support.database import fetch

# Uses the worker's reported current task, not any claimed one, so that it is killed in the middle of it.
RUNNING = """
SELECT task.id, worker.id AS worker_id
FROM tasks_worker AS worker JOIN tasks_task AS task ON task.id = worker.current_task_id
WHERE worker.stopped_at IS NULL AND worker.pid = ANY(%(pids)s::int[]) AND worker.queues = ARRAY[%(queue)s::text]
  AND task.status = 'PROCESSING' AND task.claimed_by = worker.id
"""
END_SECONDS = 2.0


@dataclass
class Victim:
    """One `run_worker` for one queue, which takes one task at a time."""

    queue: str
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(cls, queue: str) -> "Victim":
        """Start it; call this from the main thread, because the kernel ends it with the calling thread."""
        argv = [sys.executable, str(settings.BASE_DIR / "manage.py"), "run_worker", "--queue", queue]
        process = subprocess.Popen(
            bound([*argv, "--batch-size", "1", "-v0"], at_parents_death=signal.SIGKILL),
            env={**os.environ, VICTIM: "1", "LOG_LEVEL": "ERROR"},
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        return cls(queue, process)

    def running(self, connection: psycopg.Connection) -> dict[str, Any] | None:
        """Its current task, as `id` and `worker_id`, or None."""
        found = fetch(connection, RUNNING, {"pids": self._pids(), "queue": self.queue})
        return found[0] if found else None

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the supervisor and its worker at once, like a power failure."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Ask it to stop, and kill it after END_SECONDS; other workers recover its task."""
        if self.is_alive():
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def _pids(self) -> list[int]:
        try:
            return [child.pid for child in psutil.Process(self.process.pid).children()]
        except psutil.NoSuchProcess:
            return []
