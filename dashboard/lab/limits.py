"""What one run may take from the server: told to it with each session, and looked at before the first one is made."""

import psycopg

from dashboard.lab.plan import Plan
from dashboard.lab.schema import LabRefused

GRACE_SECONDS = 5  # the runner ends a run at its time; the server ends what is left when nobody did
SESSIONS_EACH = 3  # of a process: the pattern's, the ledger's, and that of a named lock
KEPT_FREE = 5  # for others who want to connect meanwhile

# None of them changes a pattern: whoever waits as long as this waits beyond the end of the run.
ENDS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
ENDS_17 = "transaction_timeout"
IDLE = "idle_session_timeout"

# Of all databases, which share max_connections; a limit of this database or of this role may be lower.
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
    """The limits of each session of a run, as PostgreSQL's `options`; the server ends what the runner no longer can.

    `start_seconds`: how long a process may wait for the others before the run begins.
    """
    names = ENDS if server_version < 170_000 else (*ENDS, ENDS_17)
    seconds = plan.seconds + GRACE_SECONDS
    told = [f"-c {name}={seconds}s" for name in names]
    return " ".join([*told, f"-c {IDLE}={seconds + start_seconds}s"])


def sessions_of(plan: Plan) -> int:
    """How many sessions the processes of a run make at most."""
    return SESSIONS_EACH * (plan.workers + plan.outside_lockers)


def refuse_when_crowded(control: psycopg.Connection, plan: Plan) -> None:
    """Raises LabRefused when the run would take the last connections of the server, database or role."""
    [(free,)] = control.execute(FREE).fetchall()
    needed = sessions_of(plan)
    if needed + KEPT_FREE > free:
        raise LabRefused(
            f"This run needs {needed} connections, and of the {max(0, free)} that are free {KEPT_FREE} are kept for "
            "others: ask for fewer workers and outside lockers, or wait until sessions have ended."
        )
