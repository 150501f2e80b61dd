"""A duty that has nothing to do."""

from tasks.support.database import Connection
from tasks.worker.companion import Wait


def is_needed(connection: Connection) -> bool:
    return True


def serve(wait: Wait) -> None:
    while not wait(60):
        pass
