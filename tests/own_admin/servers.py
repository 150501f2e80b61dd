"""A PostgreSQL of another version than the session's, with throw-away data."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dashboard.embedded import cluster
from dashboard.embedded.server import SETTINGS, EmbeddedServer
from tests.postgres import THROW_AWAY

# Versions below 17 know no builtin locale.
INITDB = tuple(option for option in cluster.INITDB if "builtin" not in option)


@contextlib.contextmanager
def server_of(installed: Path, **settings: str) -> Iterator[EmbeddedServer]:
    """A running server of this installation, with these settings."""
    with cluster.folder() as folder:
        folder.chmod(0o711)
        data = folder / "data"
        account = cluster.owner_account(data)
        runnable = cluster.runnable(installed, account, folder)
        cluster.create(data, runnable, account, INITDB)
        socket = cluster.private_folder(folder / "socket", account)
        server = EmbeddedServer(data, account, runnable, socket, {**SETTINGS, **THROW_AWAY, **settings})
        try:
            server.start()
            yield server
        finally:
            server.stop()
