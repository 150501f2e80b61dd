"""`python -m tests.benchmarks.lost_races`: what it costs several processes to go down one list, or each its own way."""

import sys
import time

import psycopg

from tests import databases
from tests.postgres import throw_away_server
from tests.tasks.locking.sharing import share, total

ROWS = 2000
FILL = """
INSERT INTO orders_order (customer_email, shipped_at)
SELECT 'customer@example.test', statement_timestamp() FROM generate_series(1, %s)
"""


def measure(url: str, processes: int, start: str) -> str:
    """One line: double-checked locking over the same rows by so many processes, no work in the body."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE orders_order")
        connection.execute(FILL, [ROWS])
        connection.execute("VACUUM ANALYZE orders_order")
    began = time.monotonic()
    reports = share(url, processes, start)
    seconds = time.monotonic() - began
    shares = " ".join(str(report["done"]) for report in sorted(reports, key=lambda report: report["done"]))
    lost, queries = total(reports, "lost_races") / ROWS, total(reports, "queries") / ROWS
    return f"{processes:>9}  {start:<5}  {lost:>14.2f}  {queries:>12.2f}  {seconds:>7.1f}  {shares}"


def main() -> None:
    print("processes  start  lost races/row  queries/row  seconds  rows per process", flush=True)
    with throw_away_server() as server:
        url = databases.named(server.url, "lost_races")
        databases.migrate(url)
        for processes in (2, 4, 8):
            for start in ("same", "own"):
                print(measure(url, processes, start), flush=True)


if __name__ == "__main__":
    sys.exit(main())
