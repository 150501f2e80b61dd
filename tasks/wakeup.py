"""LISTEN and NOTIFY: workers are woken at once, and poll behind it in case a notification is lost (fault F9).

Channels are per database, not per schema, so their names carry the schema: the lab's workers hear only their own.
"""

from tasks.database import Connection

ANNOUNCE = "SELECT pg_notify('rowlock_' || current_schema(), '')"
SUMMON = "SELECT pg_notify('rowlock_control_' || current_schema(), '')"


def announce(connection: Connection) -> None:
    """Wake idle workers: rows became READY by an UPDATE. Inserts are announced by the table's trigger."""
    with connection.cursor() as cursor:
        cursor.execute(ANNOUNCE)


def summon(connection: Connection) -> None:
    """Make every supervisor look at once for requests to cancel a task or stop a worker."""
    with connection.cursor() as cursor:
        cursor.execute(SUMMON)
