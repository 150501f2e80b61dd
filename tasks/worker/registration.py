"""The worker's own row: made after its presence lock and before its first claim, closed when it leaves."""

import os
import socket

import psycopg

from tasks import conf, registry
from tasks.worker.options import Options

REGISTER = """
INSERT INTO tasks_worker (id, hostname, pid, strategy, queues, task_paths, lease_seconds)
VALUES (%(id)s, %(hostname)s, %(pid)s, %(strategy)s, %(queues)s::text[], %(task_paths)s::text[], %(lease_seconds)s)
"""
LEAVE = """
UPDATE tasks_worker SET stopped_at = clock_timestamp(), stop_reason = 'stopped', current_task_id = NULL
WHERE id = %(id)s AND stopped_at IS NULL
"""


def register(connection: psycopg.Connection, worker_id: str, options: Options) -> None:
    """Insert the row; who claims without one is taken for dead."""
    connection.execute(
        REGISTER,
        {
            "id": worker_id,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "strategy": options.strategy,
            "queues": options.queues or [],
            "task_paths": registry.paths(),
            "lease_seconds": conf.get("LEASE_SECONDS"),
        },
    )


def leave(connection: psycopg.Connection, worker_id: str) -> None:
    """Close the row: this worker ended in order."""
    connection.execute(LEAVE, {"id": worker_id})
