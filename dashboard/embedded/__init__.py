"""The PostgreSQL that `manage.py up` runs for this checkout when DATABASE_URL is unset.

What it keeps lies in one folder, its home (`var/postgres`): the data, the owner's lock, the owner's record. Its socket,
and copies of the binaries where those are needed, lie in a folder of the run's own (`runtime`). Every process imports
this package with the settings, so only those who start a server import `dashboard.embedded.server`.
"""

import socket
from pathlib import Path

from dashboard.embedded import ownership


def home(var_dir: Path) -> Path:
    """Where the server of the checkout with this `var` folder keeps everything."""
    return var_dir / "postgres"


def running_url(var_dir: Path) -> str | None:
    """The running server's address in DATABASE_URL's form, or None. Its socket is asked: a stale record is no answer.

    Args:
        var_dir: the checkout's `var` folder.
    """
    owner = ownership.recorded(home(var_dir))
    return ownership.database_url(owner.socket_folder) if owner and listens(owner.socket_folder) else None


def listens(socket_folder: str) -> bool:
    """Whether a server accepts connections on the socket in this folder."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        return client.connect_ex(f"{socket_folder}/.s.PGSQL.5432") == 0
