"""LISTEN and NOTIFY: workers are woken at once, and poll behind it in case a notification is lost (fault F9).

Channels are per database, not per schema, so their names carry the schema: the lab's workers hear only their own.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from tasks.database import Connection

ANNOUNCE = "SELECT pg_notify('rowlock_' || current_schema(), '')"
SUMMON = "SELECT pg_notify('rowlock_control_' || current_schema(), %(payload)s::text)"
END = "end:"
IDS_PER_SUMMONS = 300  # a payload has room for 8,000 bytes


def announce(connection: Connection) -> None:
    """Wake idle workers: rows became READY by an UPDATE. Inserts are announced by the table's trigger."""
    with connection.cursor() as cursor:
        cursor.execute(ANNOUNCE)


def summon(connection: Connection) -> None:
    """Make every supervisor look at once for requests to cancel a task or stop a worker."""
    _summon(connection, "")


def ask_to_end(connection: Connection, task_ids: Iterable[int]) -> None:
    """Ask whoever runs these tasks to end them. For rows that their own worker has locked (the pessimistic strategy):
    into them no request can be written.
    """
    for ids in batched(task_ids, IDS_PER_SUMMONS):
        _summon(connection, END + ",".join(map(str, ids)))


def to_end(payload: str) -> set[int]:
    """The tasks that a summons asks to end; any session may notify, so what is no id is passed over.

    >>> sorted(to_end("end:12,7,x")), to_end("")
    ([7, 12], set())
    """
    if not payload.startswith(END):
        return set()
    return {int(part) for part in payload.removeprefix(END).split(",") if part.isascii() and part.isdecimal()}


def batched(ids: Iterable[int], size: int) -> Iterator[list[int]]:
    """Lists of at most `size` of them."""
    rest = iter(ids)
    while chunk := list(islice(rest, size)):
        yield chunk


def _summon(connection: Connection, payload: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(SUMMON, {"payload": payload})
