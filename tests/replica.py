"""A primary and its streaming replica, for tests of a failover."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from dashboard.embedded import USER
from dashboard.embedded import cluster as runtime
from dashboard.embedded.server import EmbeddedServer, running
from tests.postgres import THROW_AWAY, throw_away_server
from tests.waiting import wait_until

# A commit is acknowledged once the replica has applied it.
SYNCHRONOUS = {"synchronous_standby_names": "*", "synchronous_commit": "remote_apply"}
IN_STEP = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'"
PROMOTE = "SELECT pg_promote(wait => true, wait_seconds => 60)"


@dataclass
class Cluster:
    """Two servers; the second follows the first until it is promoted."""

    primary: EmbeddedServer
    replica: EmbeddedServer

    def url(self, name: str) -> str:
        """A URL of the database that leads to whichever server accepts writes."""
        folders = ",".join(quote(str(server.socket_folder), safe="") for server in (self.primary, self.replica))
        return f"postgres://{USER}@/{name}?host={folders}&target_session_attrs=read-write"

    def kill_primary(self) -> None:
        """Kill -9 all processes of the primary at once."""
        process = psutil.Process(self.primary.process.pid)
        for part in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                part.send_signal(signal.SIGKILL)
        self.primary.process.wait()

    def promote(self) -> None:
        with psycopg.connect(self.replica.url, autocommit=True) as connection:
            assert connection.execute(PROMOTE).fetchone() == (True,)


@contextlib.contextmanager
def cluster(**settings: str) -> Iterator[Cluster]:
    """Both servers with these settings, the replica in step: every acknowledged commit is on the replica."""
    with throw_away_server(**settings) as primary, runtime.folder() as folder:
        home = folder / "home"
        copy_at_rest(primary, home)
        follow = f"host={primary.socket_folder} user={USER}"
        settings = {**THROW_AWAY, **settings, "primary_conninfo": follow}
        with running(home, runs="a test's replica", settings=settings) as replica:
            with psycopg.connect(primary.url, autocommit=True) as connection:
                for name, value in SYNCHRONOUS.items():
                    connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
                connection.execute("SELECT pg_reload_conf()")
                wait_until(lambda: connection.execute(IN_STEP).fetchone()[0])
            yield Cluster(primary, replica)


def copy_at_rest(server: EmbeddedServer, home: Path) -> None:
    """Copy the data of the stopped server for a replica that will follow it."""
    home.parent.chmod(0o711)
    server.stop()
    shutil.copytree(server.data, home / "data", ignore=shutil.ignore_patterns("postmaster.pid"))
    (home / "data" / "standby.signal").touch()
    if server.account:
        for path in [home / "data", *(home / "data").rglob("*")]:
            os.chown(path, server.account.pw_uid, server.account.pw_gid)
    server.start()
