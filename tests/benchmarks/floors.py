"""What the database itself can do: pgbench claims and completes rows, so many at a time, with nothing around it.

And what Python adds to that at the least (tests/benchmarks/bare.py).
"""

import contextlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from dashboard.embedded.server import EmbeddedServer
from tests import databases
from tests.benchmarks.peers.environment import Unfit

BATCHES = {1: "one row per commit", 100: "batch 100", 500: "batch 500"}
DATABASE = "bench_floor"
TABLE = """
DROP TABLE IF EXISTS floor;
CREATE TABLE floor (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status text NOT NULL DEFAULT 'READY');
CREATE INDEX ON floor (id) WHERE status = 'READY'
"""
FILL = "INSERT INTO floor (status) SELECT 'READY' FROM generate_series(1, %s)"
SCRIPT = """
WITH candidate AS MATERIALIZED (
    SELECT id FROM floor WHERE status = 'READY' ORDER BY id LIMIT {batch} FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE floor SET status = 'PROCESSING' FROM candidate WHERE floor.id = candidate.id RETURNING floor.id
) SELECT coalesce(array_agg(id), ARRAY[]::bigint[]) AS ids FROM claimed \\gset
UPDATE floor SET status = 'COMPLETED' WHERE id = ANY (':ids'::bigint[]);
"""
RATE = re.compile(r"tps = ([0-9.]+) \(without initial connection time\)")


class Floor:
    """On a server; `name` says how many rows a claim takes."""

    def __init__(self, server: EmbeddedServer, batch: int) -> None:
        self.server = server
        self.batch = batch
        self.url = databases.named(server.url, DATABASE)
        self.name = f"pgbench, {BATCHES[batch]}"
        with contextlib.suppress(psycopg.errors.DuplicateDatabase):  # the floors share one
            databases.create(self.url)

    def share(self, tasks: int) -> int:
        """One row at a time is slow, and gets fewer."""
        return max(self.batch, tasks // 20 if self.batch == 1 else tasks)

    def fill(self, tasks: int) -> None:
        """So many rows, ready, in an empty table."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute(FILL, [tasks])
            connection.execute("VACUUM ANALYZE floor")
            connection.execute("CHECKPOINT")

    def drain(self, tasks: int, sessions: int) -> float:
        """Rows a second of so many sessions. Raises Unfit."""
        self.fill(self.share(tasks))
        transactions = max(1, self.share(tasks) // self.batch // sessions)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script.sql"
            script.write_text(SCRIPT.format(batch=self.batch))
            told = self._pgbench(["-n", "-c", sessions, "-j", sessions, "-t", transactions, "-f", script])
        found = RATE.search(told)
        if not found:
            raise Unfit(f"pgbench told no rate: {told.strip().splitlines()[-1:]}")
        return float(found[1]) * self.batch

    def _pgbench(self, options: list[object]) -> str:
        program = self.server.installation / "bin" / "pgbench"
        line = [str(program), *map(str, options), make_conninfo(self.url)]
        done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "PGOPTIONS": ""})
        if done.returncode:
            raise Unfit(f"pgbench ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout
