"""A server's main process seen from outside: readiness, leftovers of a killed owner, and stopping."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pwd import struct_passwd
from typing import IO

import psutil

from dashboard.embedded import ServerError, cluster, database_url, held, pid_file
from dashboard.processes import bound

POLL_SECONDS = 0.02
# Fast shutdown, then immediate shutdown (the next start replays the log), then SIGKILL.
STOP = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))


def stop(process: psutil.Process, steps: Sequence[tuple[signal.Signals, float]] = STOP) -> None:
    """Stop a server and wait until it is gone.

    Args:
        process: its main process.
        steps: the signals to send, and the seconds to wait after each.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        for number, patience_seconds in steps:
            process.send_signal(number)
            if ends_within(process, patience_seconds):
                return


def ends_within(process: psutil.Process, seconds: float) -> bool:
    """Wait for a process that need not be our child; a zombie counts as ended."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
    return True


def clear_leftover(data: Path) -> None:
    """Prepare a data folder whose owner was killed: stop its server, or remove a stale pid file.

    If another process has the pid in a stale file, PostgreSQL would refuse to start. PostgreSQL's working directory is
    its data folder.
    """
    try:
        process = psutil.Process(int(pid_file(data)[0]))
    except (IndexError, ValueError, psutil.NoSuchProcess):
        return  # PostgreSQL itself notices that nobody is there
    is_ours = False
    with contextlib.suppress(psutil.Error, FileNotFoundError):
        is_ours = process.name() == "postgres" and Path(process.cwd()).samefile(data)
    if is_ours:
        stop(process)
    else:
        (data / "postmaster.pid").unlink(missing_ok=True)


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

    Raises ServerError if another process runs it or it cannot be created.
    """
    with held(home, runs), cluster.folder() as folder:
        data = home / "data"
        account = cluster.owner_account(data)
        if account:
            folder.chmod(0o711)  # the account can pass, but not list
        server = EmbeddedServer(
            data=data,
            account=account,
            installation=cluster.installation(account, folder),
            socket_folder=cluster.private_folder(folder / "socket", account),
            settings={**SETTINGS, **(settings or {})},
        )
        if data.exists():
            clear_leftover(data)
        else:
            cluster.create(data, server.installation, account)
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
    account: struct_passwd | None
    installation: Path
    socket_folder: Path
    settings: Mapping[str, str]
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        return database_url(str(self.socket_folder))

    def start(self) -> None:
        """Launch it with its log beside the data, and wait until it accepts connections. Raises ServerError."""
        with (self.data.parent / "server.log").open("ab") as log:
            self.launch(log)
        deadline = time.monotonic() + START_PATIENCE_SECONDS
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise ServerError(f"PostgreSQL did not accept connections within {START_PATIENCE_SECONDS} s.")
            time.sleep(POLL_SECONDS)

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
        """True if it accepts connections, as its pid file says. Raises ServerError if it has ended."""
        if self.process is None or self.process.poll() is not None:
            status = self.process and self.process.returncode
            raise ServerError(f"PostgreSQL ended while it started (status {status}); its log says why.")
        lines = pid_file(self.data)
        return len(lines) >= 8 and lines[0] == str(self.process.pid) and lines[7].strip() == "ready"

    def stop(self) -> None:
        """Stop it and wait until it is gone; does nothing if it does not run."""
        if self.process and self.process.poll() is None:
            stop(psutil.Process(self.process.pid))
            self.process.wait()
        self.process = None
