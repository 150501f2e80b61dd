"""LISTEN and NOTIFY: workers are woken at once, and also poll in case a notification is lost (fault F9).

Channels belong to a database, not to a schema. So their names contain the schema, and the lab's workers get only their
own.
"""

from collections.abc import Sequence

from tasks.support.database import Connection, execute

NEW_TASK = ""  # the payload of the table's trigger
ANNOUNCE = "SELECT pg_notify('rowlock_' || current_schema(), 'ready')"
OFFER_DUTY = "SELECT pg_notify('rowlock_' || current_schema(), 'duty')"
SUMMON = "SELECT pg_notify('rowlock_control_' || current_schema(), %(payload)s::text)"
SWEPT = "swept"
END = "end:"
IDS_PER_SUMMONS = 300  # a payload holds 8,000 bytes


def announce(connection: Connection) -> None:
    """Make every idle worker look for READY rows, as after an UPDATE. The table's trigger announces inserts."""
    execute(connection, ANNOUNCE)


def offer_duty(connection: Connection) -> None:
    """Tell the leader of every supervisor that nobody is on duty: until one is, enqueuers wake none of them."""
    execute(connection, OFFER_DUTY)


def summon(connection: Connection, payload: str = "") -> None:
    """Make every supervisor check at once for requests to cancel a task or stop a worker."""
    execute(connection, SUMMON, {"payload": payload})


def tell_swept(connection: Connection) -> None:
    """Tell the other supervisors that all workers were checked just now: they need not do it."""
    summon(connection, SWEPT)


def ask_to_end(connection: Connection, task_ids: Sequence[int]) -> None:
    """Ask the workers that run these tasks to end them.

    This is for rows locked by their own worker (the pessimistic strategy), where no request can be written.
    """
    for start in range(0, len(task_ids), IDS_PER_SUMMONS):
        summon(connection, END + ",".join(map(str, task_ids[start : start + IDS_PER_SUMMONS])))


def to_end(payload: str) -> set[int]:
    """The tasks that a payload asks to end; any session may notify, so invalid ids are skipped.

    >>> sorted(to_end("end:12,7,x")), to_end("")
    ([7, 12], set())
    """
    if not payload.startswith(END):
        return set()
    return {int(part) for part in payload.removeprefix(END).split(",") if part.isascii() and part.isdecimal()}
