"""Limits of a run on the server: timeouts for each session, and a check for free connections."""

import psycopg

from dashboard.lab.plan import Plan
from dashboard.lab.schema import LabRefused

GRACE_SECONDS = 5  # the runner ends a run in time; if it cannot, the server ends what is left
SESSIONS_EACH = 3  # for each process: the pattern's, the ledger's, and that of a named lock
KEPT_FREE = 5  # for other clients

# None of them changes a pattern: a wait this long would last beyond the end of the run.
ENDS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
ENDS_17 = "transaction_timeout"
IDLE = "idle_session_timeout"

# All databases share max_connections; a limit of this database or of this role may be lower.
FREE = """
SELECT least(
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0)
        - (SELECT coalesce(sum(numbackends), 0)::int FROM pg_stat_database),
    (SELECT CASE WHEN datconnlimit >= 0 THEN datconnlimit - pg_stat_get_db_numbackends(oid) END
     FROM pg_database WHERE datname = current_database()),
    (SELECT CASE WHEN rolconnlimit >= 0 THEN rolconnlimit - (
        SELECT count(*)::int FROM pg_stat_activity WHERE usesysid = role.oid) END
     FROM pg_roles AS role WHERE rolname = current_user)
)
"""


def session_options(plan: Plan, server_version: int, *, start_seconds: int) -> str:
    """The timeouts of a run's sessions, as PostgreSQL's `options`, in case the runner cannot end them.

    `start_seconds`: how long a process may wait for the others before the run begins.
    """
    names = ENDS if server_version < 170_000 else (*ENDS, ENDS_17)
    seconds = plan.seconds + GRACE_SECONDS
    told = [f"-c {name}={seconds}s" for name in names]
    return " ".join([*told, f"-c {IDLE}={seconds + start_seconds}s"])


def sessions_of(plan: Plan) -> int:
    """The maximum number of sessions that a run's processes open."""
    return SESSIONS_EACH * (plan.workers + plan.outside_lockers)


def refuse_when_crowded(control: psycopg.Connection, plan: Plan) -> None:
    """Raise LabRefused if the run would take the last connections of the server, database or role."""
    [(free,)] = control.execute(FREE).fetchall()
    needed = sessions_of(plan)
    if needed + KEPT_FREE > free:
        raise LabRefused(
            f"This run needs {needed} connections, and of the {max(0, free)} that are free {KEPT_FREE} are kept for "
            "others: ask for fewer workers and outside lockers, or wait until sessions have ended."
        )
