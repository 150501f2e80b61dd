"""The embedded PostgreSQL server as a child process."""

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

START_PATIENCE_SECONDS = 120  # after a kill the server first replays the write-ahead log
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
    """The server of `home`, owned by this process and ready to launch; stopped at the end.

    Args:
        home: the folder of its data, created at the first run.
        runs: a description of this process, for others that find the home in use.
        settings: PostgreSQL settings in addition to ours.

    Raises:
        HomeInUse: another process runs it.
        ServerError: it cannot be created.
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
    """Like `prepared`, but already accepting connections, with its log in `home`."""
    with prepared(home, runs=runs, settings=settings) as server:
        server.start()
        yield server


@dataclass
class EmbeddedServer:
    """One server, made by `prepared` or `running`.

    Attributes:
        data: its data folder.
        account: the user who runs it, None for this process's own.
        installation: PostgreSQL's `bin`, `lib` and `share`.
        socket_folder: the folder of its socket, the same after a restart.
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
        return database_url(str(self.socket_folder))

    def start(self) -> None:
        """Launch it with its log beside the data, and wait until it accepts connections."""
        with (self.data.parent / "server.log").open("ab") as log:
            self.launch(log)
        self.wait_until_ready()

    def launch(self, output: IO[bytes] | int) -> None:
        """Start its main process, in a process group of its own, so that a terminal's Ctrl-C does not reach it."""
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
        """True if it accepts connections. Raises ServerError if it has ended instead."""
        if self.process is None or self.process.poll() is not None:
            status = self.process and self.process.returncode
            raise ServerError(f"PostgreSQL ended while it started (status {status}); its log says why.")
        return postmaster.is_ready(self.data, self.process.pid)

    def wait_until_ready(self) -> None:
        """Wait until it accepts connections. Raises ServerError if it ends or takes over START_PATIENCE_SECONDS."""
        deadline = time.monotonic() + START_PATIENCE_SECONDS
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise ServerError(f"PostgreSQL did not accept connections within {START_PATIENCE_SECONDS} s.")
            time.sleep(postmaster.POLL_SECONDS)

    def stop(self) -> None:
        """Stop it and wait until it is gone; does nothing if it does not run."""
        if self.process and self.process.poll() is None:
            postmaster.stop(psutil.Process(self.process.pid))
            self.process.wait()
        self.process = None
