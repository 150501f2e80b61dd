"""Worker processes of the demo's own, started to be killed with SIGKILL: real ones, in a process group of their own."""

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
from tasks.database import fetch

# What the worker says of itself, not only what is claimed: it is killed in the middle of the task.
RUNNING = """
SELECT task.id, worker.id AS worker_id
FROM tasks_worker AS worker JOIN tasks_task AS task ON task.id = worker.current_task_id
WHERE worker.stopped_at IS NULL AND worker.pid = ANY(%(pids)s::int[]) AND worker.queues = ARRAY[%(queue)s::text]
  AND task.status = 'PROCESSING' AND task.claimed_by = worker.id
"""
END_SECONDS = 2.0


@dataclass
class Victim:
    """One `run_worker` for one queue, which takes a task at a time."""

    queue: str
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(cls, queue: str) -> "Victim":
        """Starts it; call this from the main thread, with whose end the kernel ends it."""
        argv = [sys.executable, str(settings.BASE_DIR / "manage.py"), "run_worker", "--queue", queue]
        process = subprocess.Popen(
            bound([*argv, "--batch-size", "1", "-v0"], at_parents_death=signal.SIGKILL),
            env={**os.environ, VICTIM: "1", "LOG_LEVEL": "ERROR"},
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        return cls(queue, process)

    def running(self, connection: psycopg.Connection) -> dict[str, Any] | None:
        """The task that it is at, as `id` and `worker_id`; None while it is at none."""
        found = fetch(connection, RUNNING, {"pids": self._pids(), "queue": self.queue})
        return found[0] if found else None

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL to the supervisor and its worker at once, as when a machine loses its power."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Asks it to stop and gives it a moment; what it was at is taken back by other workers."""
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
