"""The PostgreSQL that `manage.py up` runs for this checkout if DATABASE_URL is unset.

Its home (`var/postgres`) keeps the data, the owner's lock and the owner's record. Each run has a folder of its own for
the socket and, if needed, copies of the binaries (`runtime`). Every process imports this package with the settings, so
only processes that start a server import `dashboard.embedded.server`.
"""

import socket
from pathlib import Path

from dashboard.embedded import ownership


def home(var_dir: Path) -> Path:
    """The folder of the server's data, lock and record, for a checkout with this `var` folder."""
    return var_dir / "postgres"


def running_url(var_dir: Path) -> str | None:
    """The running server's URL, or None. It tries the socket, because the record may be stale.

    Args:
        var_dir: the checkout's `var` folder.
    """
    owner = ownership.recorded(home(var_dir))
    return ownership.database_url(owner.socket_folder) if owner and listens(owner.socket_folder) else None


def listens(socket_folder: str) -> bool:
    """True if a server accepts connections on the socket in this folder."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        return client.connect_ex(f"{socket_folder}/.s.PGSQL.5432") == 0
