"""Start the processes of a run by forking a loaded one: milliseconds instead of a second.

The runner starts `python -m dashboard.lab.forkserver` with a socket as its stdin. That process loads the project once.
It opens no connection and starts no thread, so a fork of it equals a new process. Requests are lines: "fork", with the
pipes that become stdin and stdout, or "kill PID". It answers "forked PID 0", and "ended PID STATUS" whenever a fork has
ended. The kernel ends the forkserver with the runner, and the forks with the forkserver (Linux).
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any, TextIO

import django
import psycopg

from dashboard.lab.schema import LabRefused
from dashboard.processes import bound, die_with


def main() -> None:
    with socket.socket(fileno=os.dup(0)) as channel:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
        django.setup()
        load_project()
        serve(channel)


def serve(channel: socket.socket) -> None:
    """Serve until the runner closes the socket; then end the children."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    children: set[int] = set()
    sources: list[socket.socket | int] = [channel, woken]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if channel in ready and not obey(channel, children):
            break
        if woken in ready:
            os.read(woken, 4096)
        reap(channel, children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def obey(channel: socket.socket, children: set[int]) -> bool:
    """Carry out the requests; False if the runner has closed the socket."""
    data, pipes, _, _ = socket.recv_fds(channel, 4096, 2)
    for line in data.decode().splitlines():
        verb, _, pid = line.partition(" ")
        if verb == "fork":
            children.add(fork(channel, *pipes))
        elif int(pid) in children:
            os.kill(int(pid), signal.SIGKILL)
    return bool(data)


def fork(channel: socket.socket, stdin: int, stdout: int) -> int:
    """Fork a process with these pipes. Returns its pid, and reports it to the runner."""
    forkserver = os.getpid()
    pid = os.fork()
    if not pid:
        become_worker(channel, forkserver, stdin, stdout)
    os.close(stdin)
    os.close(stdout)
    channel.sendall(f"forked {pid} 0\n".encode())
    return pid


def become_worker(channel: socket.socket, forkserver: int, stdin: int, stdout: int) -> None:
    """Runs in the fork and never returns."""
    status = 1
    try:
        channel.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(forkserver, signal.SIGKILL)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.close(stdin)
        os.close(stdout)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        status = do_job()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  this fork must never return into the parent's loop
        traceback.print_exc()
    finally:
        os._exit(status)


def reap(channel: socket.socket, children: set[int]) -> None:
    """Report each child that has ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.discard(pid)
            channel.sendall(f"ended {pid} {os.waitstatus_to_exitcode(status)}\n".encode())


LEDGER_BACKEND = "dashboard.lab.worker.LedgerBackend"
LONGEST_ERROR = 300  # characters
WITHOUT_SYNC = "-c synchronous_commit=off"  # for the ledger, which should measure and not slow down


def load_project() -> None:
    """Import what all processes need, before the fork."""
    from dashboard.lab import patterns, worker  # noqa: F401
    from dashboard.lab.patterns import registered  # noqa: F401


def do_job() -> int:
    """Do the job. Returns the exit status."""
    job = json.loads(sys.stdin.readline())
    try:
        with connected(job) as ledger_connection:
            begin_job(job, ledger_connection)
    except Exception as error:  # noqa: BLE001  the runner shows its type and message; the log has the traceback
        traceback.print_exc()
        sys.stdout.write(f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST_ERROR]}\n")
        return 1
    return 0


def begin_job(job: dict[str, Any], ledger_connection: psycopg.Connection) -> None:
    """Connect, wait for the start, and do the job."""
    from django.db import connection

    from dashboard.lab.patterns import PATTERNS
    from dashboard.lab.worker import Ledger, Plan, Worker, deliver_to

    plan = Plan.from_dict(job["plan"])
    worker = Worker(plan, job["number"], Ledger(ledger_connection, job["number"]))
    deliver_to(worker)
    pattern = PATTERNS[plan.pattern]
    with connection.execute_wrapper(worker.count):
        connection.ensure_connection()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            return
        worker.ledger.note("start")
        worker.ledger.note("session", connection.connection.info.backend_pid)
        if job["role"] == "outside":
            from dashboard.lab.patterns.registered import touch_until_over

            touch_until_over(worker, pattern.rows)
        elif job["role"] == "sample":
            pattern.make_rows(plan.items)
        else:
            pattern.run(worker)
        worker.ledger.note("end")
        worker.ledger.keep(worker.statements)


@contextmanager
def connected(job: dict[str, Any]) -> Iterator[psycopg.Connection]:
    """Restrict this process's connections to the lab's schema; yields a second connection in autocommit."""
    from django.conf import settings
    from django.db import connections

    from tasks.compat import MAILERS_IN_DJANGO
    from tasks.support.database import session_name

    wrapper = connections["default"]
    options = {**wrapper.settings_dict["OPTIONS"], "application_name": session_name("lab", job["schema"])}
    options["options"] = f"-c search_path={job['schema']} {job['limits']}"
    wrapper.settings_dict.update(job["database"])
    wrapper.settings_dict["OPTIONS"] = options
    # No e-mail leaves the lab.
    if MAILERS_IN_DJANGO:
        settings.MAILERS = {"default": {"BACKEND": LEDGER_BACKEND}}
    else:
        settings.EMAIL_BACKEND = LEDGER_BACKEND
    params = {key: value for key, value in wrapper.get_connection_params().items() if key in CONNECTING}
    params["options"] = f"{params['options']} {WITHOUT_SYNC}"
    with psycopg.connect(**params, autocommit=True) as connection:
        yield connection


CONNECTING = {"dbname", "user", "password", "host", "port", "options", "application_name", "connect_timeout", "sslmode"}


ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60


@contextmanager
def open_forkserver() -> Iterator["Forkserver"]:
    """A `Nursery` for one run or several; all its processes have ended after the block."""
    forkserver = Forkserver()
    try:
        yield forkserver
    finally:
        forkserver.close()


@dataclass
class Forkserver:
    """Requests processes and records their exit. It starts nothing before the first request."""

    ended: dict[int, int] = field(default_factory=dict)
    _forked: list[int] = field(default_factory=list)
    _unread: bytes = b""
    _is_gone: bool = False
    _process: "subprocess.Popen[bytes] | None" = None
    _channel: socket.socket = field(init=False)

    def start(self, job: Mapping[str, Any]) -> "RunProcess":
        """Start a process. Its job goes through a pipe, because a command line would show the password."""
        if self._process is None or self._is_gone:
            self.close()
            self._open()
        child_in, to_child = os.pipe()
        from_child, child_out = os.pipe()
        socket.send_fds(self._channel, [b"fork\n"], [child_in, child_out])
        os.close(child_in)
        os.close(child_out)
        process = RunProcess(self, os.fdopen(to_child, "w"), os.fdopen(from_child))
        deadline = time.monotonic() + START_SECONDS
        while not self._forked:
            self.listen(1.0)
            if self._is_gone or time.monotonic() > deadline:
                raise LabRefused("The process that starts those of a run does not answer; its log says more.")
        process.pid = self._forked.pop()
        process.send(json.dumps(job))
        return process

    def listen(self, seconds: float = 0.0) -> None:
        """Read messages, waiting up to `seconds` for the first."""
        while not self._is_gone and select.select([self._channel], [], [], seconds)[0]:
            data = self._channel.recv(4096)
            self._is_gone = not data
            *lines, self._unread = (self._unread + data).split(b"\n")
            for what, pid, status in (line.split() for line in lines):
                if what == b"forked":
                    self._forked.append(int(pid))
                else:
                    self.ended[int(pid)] = int(status)
            seconds = 0.0

    def status_of(self, pid: int) -> int | None:
        """Its exit status (a signal is negative), None while it runs. All end with the forking process."""
        if pid not in self.ended:
            self.listen()
        return self.ended.get(pid, -SIGKILL if self._is_gone else None)

    def kill(self, pid: int) -> None:
        """Send SIGKILL through its parent, which alone knows that the pid still belongs to this process."""
        with suppress(BrokenPipeError):  # then all processes are gone
            self._channel.sendall(f"kill {pid}\n".encode())

    def close(self) -> None:
        """End everything that was started."""
        if self._process is not None:
            self._channel.close()
            self._process.kill()
            self._process.wait()
            self._process, self._unread, self._is_gone = None, b"", False

    def _open(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            argv = bound([sys.executable, "-m", "dashboard.lab.forkserver"], at_parents_death=SIGKILL)
            self._process = subprocess.Popen(argv, cwd=ROOT, stdin=theirs.fileno())


@dataclass
class RunProcess:
    """One process, as the runner sees it."""

    forkserver: Forkserver
    stdin: TextIO
    stdout: TextIO
    pid: int = 0

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self.forkserver.status_of(self.pid)

    def wait(self, seconds: float = START_SECONDS) -> int:
        """Wait for its exit status. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"A process of the lab did not end within {seconds} s.")
            self.forkserver.listen(0.1)
        return status

    def kill(self) -> None:
        """Kill it and wait until it is gone."""
        if self.poll() is None:
            self.forkserver.kill(self.pid)
            self.wait()

    def close(self) -> None:
        """Kill it and close its pipes."""
        self.kill()
        with suppress(BrokenPipeError):  # it does not need the last line
            self.stdin.close()
        self.stdout.close()

    def send(self, line: str) -> None:
        """Send it one line, unless it has ended."""
        with suppress(BrokenPipeError):
            self.stdin.write(f"{line}\n")
            self.stdin.flush()

    def wait_until_ready(self) -> None:
        """Wait until it is ready. Raises LabRefused with its output otherwise."""
        said = ""
        if select.select([self.stdout], [], [], START_SECONDS)[0]:
            said = self.stdout.readline()
        if said != "ready\n":
            raise LabRefused(f"A process of the lab did not start; its log says more. {said}".strip())

    def last_words(self) -> str:
        """The output of an ended process since it was ready."""
        return self.stdout.read().removeprefix("ready\n").strip()


if __name__ == "__main__":
    main()
