"""Several processes on the same rows, started together, and what each of them reports."""

import json
import os
import subprocess
import sys

import psycopg

from tests.databases import ROOT
from tests.tasks.locking.share_rows import BARRIER
from tests.waiting import wait_until

WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"


def share(url: str, processes: int, start: str, *, meet: bool = False) -> list[dict[str, int]]:
    """Run `share_rows START` in so many processes on the database `url`; they begin when all of them are there.

    `meet`: each keeps its first row until all of them hold one, so that none has done the work of the others by then.
    """
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    line = [sys.executable, "-m", "tests.tasks.locking.share_rows", start, str(processes if meet else 0)]
    with psycopg.connect(url, autocommit=True) as barrier:
        barrier.execute("SELECT pg_advisory_lock(%s)", [BARRIER])
        crew = [
            subprocess.Popen(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]

        def all_of_them_wait() -> bool:
            return barrier.execute(WAITING, [BARRIER]).fetchone()[0] == processes

        wait_until(all_of_them_wait, seconds=60)
    return [json.loads(process.communicate(timeout=120)[0]) for process in crew]


def total(reports: list[dict[str, int]], key: str) -> int:
    return sum(report[key] for report in reports)
