"""A forked process of a run: a worker, an outside locker, or the one that makes the rows.

It reads its job as one line of JSON on stdin and writes "ready" once it is connected. It begins at the next line.
"""

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

LEDGER = "dashboard.lab.bench.LedgerBackend"
MOST_SAID = 300  # characters
CALM = "-c synchronous_commit=off"  # for the ledger, which should measure and not slow down


def load() -> None:
    """Import what all processes need, before the fork."""
    from dashboard.lab import bench, ledger, patterns, plan  # noqa: F401
    from dashboard.lab.patterns import registered  # noqa: F401


def main() -> int:
    """Do the job. Returns the exit status."""
    job = json.loads(sys.stdin.readline())
    try:
        with connected(job) as ledger_connection:
            begin(job, ledger_connection)
    except Exception as error:  # noqa: BLE001  the runner shows its type and message; the log has the traceback
        traceback.print_exc()
        sys.stdout.write(f"{type(error).__name__}: {' '.join(str(error).split())[:MOST_SAID]}\n")
        return 1
    return 0


def begin(job: dict[str, Any], ledger_connection: psycopg.Connection) -> None:
    """Make the bench, wait for the start, and do the job."""
    from django.db import connection

    from dashboard.lab import bench as mail
    from dashboard.lab.bench import Bench
    from dashboard.lab.ledger import Ledger
    from dashboard.lab.patterns import PATTERNS
    from dashboard.lab.plan import Plan

    plan = Plan.from_dict(job["plan"])
    bench = Bench(plan, job["number"], Ledger(ledger_connection, job["number"]))
    mail.deliver_to(bench)
    pattern = PATTERNS[plan.pattern]
    with connection.execute_wrapper(bench.count):
        connection.ensure_connection()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            return
        bench.ledger.note("start")
        bench.ledger.note("session", connection.connection.info.backend_pid)
        if job["role"] == "outside":
            from dashboard.lab.patterns.registered import touch_until_told

            touch_until_told(bench, pattern.rows)
        elif job["role"] == "sample":
            pattern.make_rows(plan.items)
        else:
            pattern.run(bench)
        bench.ledger.note("end")
        bench.ledger.keep(bench.statements)


@contextmanager
def connected(job: dict[str, Any]) -> Iterator[psycopg.Connection]:
    """Restrict this process's connections to the lab's schema; yields a second connection in autocommit."""
    from django.conf import settings
    from django.db import connections

    from tasks.compat import MAILERS_IN_DJANGO

    wrapper = connections["default"]
    options = {**wrapper.settings_dict["OPTIONS"], "application_name": f"rowlock:lab:{job['schema']}"}
    options["options"] = f"-c search_path={job['schema']} {job['limits']}"
    wrapper.settings_dict.update(job["database"])
    wrapper.settings_dict["OPTIONS"] = options
    # No e-mail leaves the lab.
    if MAILERS_IN_DJANGO:
        settings.MAILERS = {"default": {"BACKEND": LEDGER}}
    else:
        settings.EMAIL_BACKEND = LEDGER
    params = {key: value for key, value in wrapper.get_connection_params().items() if key in CONNECTING}
    params["options"] = f"{params['options']} {CALM}"
    with psycopg.connect(**params, autocommit=True) as connection:
        yield connection


CONNECTING = {"dbname", "user", "password", "host", "port", "options", "application_name", "connect_timeout", "sslmode"}
