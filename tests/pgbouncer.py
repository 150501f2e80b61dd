"""A real PgBouncer in front of a database server, in a temporary folder."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dashboard.processes import bound
from tests.databases import name_of
from tests.waiting import wait_until

PORT = 6432
VERSION_OF_PREPARED, MOST_PREPARED = (1, 21), 200
# Each transaction gets another session than the one before, so state left in a session is lost.
CONFIGURATION = """
[databases]
* = {server}
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
admin_users = {user}
pool_mode = {mode}
min_pool_size = 3
default_pool_size = 8
server_round_robin = 1
ignore_startup_parameters = extra_float_digits{ignored}
"""


@contextlib.contextmanager
def pgbouncer(
    url: str,
    *,
    mode: str = "transaction",
    ignores_options: bool = False,
    keeps_prepared: bool = False,
    folder: str = "",
) -> Iterator[str]:
    """The URL of the same database through a pooling proxy.

    `ignores_options`: it drops the client's startup options instead of refusing the client. `keeps_prepared`: it keeps
    account of prepared statements. `folder`: of its socket; in the same one another proxy has the same URL.
    """
    found = program()
    server = conninfo_to_dict(url)
    account = pwd.getpwuid(owner_of(str(server.get("host", "")))) if os.geteuid() == 0 else None
    with contextlib.ExitStack() as stack:
        folder = folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="pgbouncer-", dir="/tmp"))
        if account:
            os.chown(folder, account.pw_uid, account.pw_gid)
        configuration = Path(folder) / "pgbouncer.ini"
        more = f"max_prepared_statements = {MOST_PREPARED}\n" if keeps_prepared else ""
        configuration.write_text(configured(server, folder, mode, ignores_options) + more)
        argv = bound([found, str(configuration)], account=account, at_parents_death=signal.SIGKILL)
        with (Path(folder) / "log").open("wb") as log, subprocess.Popen(argv, cwd="/", stderr=log) as process:
            try:
                proxied = f"postgres://{server['user']}@/{name_of(url)}?host={quote(folder, safe='')}&port={PORT}"
                wait_until(lambda: answers(proxied))
                yield proxied
            finally:
                process.kill()


def program() -> str:
    """The PgBouncer of the variable PGBOUNCER, or the machine's."""
    found = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, "No pgbouncer: install the machine's package of that name."
    return found


@cache
def version() -> tuple[int, ...]:
    """Of the program, for example (1, 18, 0)."""
    told = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, told.split()[1].split(".")))


def owner_of(host: str) -> int:
    """The owner of the server's socket folder, which the proxy must enter; over TCP any user but root."""
    return os.stat(host).st_uid if host.startswith("/") else pwd.getpwnam("nobody").pw_uid


def configured(server: dict[str, object], folder: str, mode: str, ignores_options: bool) -> str:
    way = " ".join(f"{key}={server[key]}" for key in ("host", "port", "user", "password") if server.get(key))
    ignored = ", options" if ignores_options else ""
    user = server["user"]
    return CONFIGURATION.format(server=way, port=PORT, folder=folder, user=user, mode=mode, ignored=ignored)


def answers(url: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as connection:
        return connection.execute("SELECT true").fetchone() == (True,)
    return False
