"""A PostgreSQL server as a child process of ours."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from dashboard.embedded import binaries, cluster, postmaster, runtime
from dashboard.embedded.exceptions import ServerError
from dashboard.embedded.ownership import Owner, database_url, held
from dashboard.processes import Account, bound

START_PATIENCE_SECONDS = 120  # after a kill the write-ahead log is replayed first
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "log_lock_waits": "on",
    "log_checkpoints": "off",
    "cluster_name": "rowlock",
}


@contextmanager
def prepared(home: Path, *, runs: str, settings: Mapping[str, str] | None = None) -> Iterator["EmbeddedServer"]:
    """The server of `home`, owned by this process and ready to be launched; stopped at the end, and only `home` stays.

    Args:
        home: the folder that keeps its data, made at the first run.
        runs: what this process is, told to whoever finds the home in use.
        settings: PostgreSQL settings beside ours.

    Raises:
        HomeInUse: another process runs it.
        ServerError: it cannot be made.
    """
    with held(home) as record, runtime.folder() as folder:
        data = home / "data"
        account = cluster.owner_account(data)
        server = EmbeddedServer(
            data=data,
            account=account,
            installation=binaries.installation(account, folder),
            socket_folder=runtime.private_folder(folder / "socket", account),
            settings={**SETTINGS, **(settings or {})},
        )
        if data.exists():
            postmaster.clear_leftover(data)
        else:
            cluster.create(data, server.installation, account)
        record(Owner(os.getpid(), str(server.socket_folder), runs))
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def running(home: Path, *, runs: str, settings: Mapping[str, str] | None = None) -> Iterator["EmbeddedServer"]:
    """The server of `home`, accepting connections, its log in `home`; as `prepared` otherwise."""
    with prepared(home, runs=runs, settings=settings) as server:
        server.start()
        yield server


@dataclass
class EmbeddedServer:
    """One server; `prepared` and `running` make it.

    Attributes:
        data: its data folder.
        account: the user who runs it, None for this process's own.
        installation: PostgreSQL's `bin`, `lib` and `share`.
        socket_folder: where its socket is, the same after a restart.
        process: its main process, None before the first launch and after a stop.
    """

    data: Path
    account: Account | None
    installation: Path
    socket_folder: Path
    settings: Mapping[str, str]
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Its address in DATABASE_URL's form."""
        return database_url(str(self.socket_folder))

    def start(self) -> None:
        """Launches it with its log beside the data, and waits until it accepts connections."""
        with (self.data.parent / "server.log").open("ab") as log:
            self.launch(log)
        self.wait_until_ready()

    def launch(self, output: IO[bytes] | int) -> None:
        """Starts its main process, in a process group of its own so that a terminal's Ctrl-C passes it by."""
        settings = {**self.settings, "unix_socket_directories": str(self.socket_folder)}
        with cluster.reachable(self.data, self.account) as (path, descriptors):
            argv = [str(self.installation / "bin" / "postgres"), "-D", path]
            argv += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
            self.process = subprocess.Popen(
                bound(argv, account=self.account, at_parents_death=signal.SIGINT),
                pass_fds=descriptors,
                process_group=0,
                env=cluster.ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def is_ready(self) -> bool:
        """Whether it accepts connections; ServerError when it ended instead."""
        if self.process is None or self.process.poll() is not None:
            status = self.process and self.process.returncode
            raise ServerError(f"PostgreSQL ended while it started (status {status}); its log says why.")
        return postmaster.is_ready(self.data, self.process.pid)

    def wait_until_ready(self) -> None:
        """Waits until it accepts connections; ServerError when it ends or takes more than two minutes."""
        deadline = time.monotonic() + START_PATIENCE_SECONDS
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise ServerError(f"PostgreSQL did not accept connections within {START_PATIENCE_SECONDS} s.")
            time.sleep(postmaster.POLL_SECONDS)

    def stop(self) -> None:
        """Stops it and waits until it is gone; nothing to do when it does not run."""
        if self.process and self.process.poll() is None:
            postmaster.stop(psutil.Process(self.process.pid))
            self.process.wait()
        self.process = None
