"""The process that forks those of a run: `python -m dashboard.lab.forkserver`, with a socket as its stdin.

It loads the project once. It opens no connection and starts no thread, so a fork of it equals a new process. Requests
are lines: "fork", with the pipes that become stdin and stdout, or "kill PID". It answers "forked PID 0", and "ended PID
STATUS" whenever one has ended.
"""

import os
import select
import signal
import socket
import sys
import traceback

import django

from dashboard.processes import die_with


def main() -> None:
    with socket.socket(fileno=os.dup(0)) as channel:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
        django.setup()
        from dashboard.lab import process

        process.load()
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
        bury(channel, children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def obey(channel: socket.socket, children: set[int]) -> bool:
    """Carry out the requests; False if the runner has closed the socket."""
    data, pipes, _, _ = socket.recv_fds(channel, 4096, 2)
    for line in data.decode().splitlines():
        verb, _, pid = line.partition(" ")
        if verb == "fork":
            children.add(bear(channel, *pipes))
        elif int(pid) in children:
            os.kill(int(pid), signal.SIGKILL)
    return bool(data)


def bear(channel: socket.socket, stdin: int, stdout: int) -> int:
    """Fork a process with these pipes. Returns its pid, and reports it to the runner."""
    mother = os.getpid()
    pid = os.fork()
    if not pid:
        become_worker(channel, mother, stdin, stdout)
    os.close(stdin)
    os.close(stdout)
    channel.sendall(f"forked {pid} 0\n".encode())
    return pid


def become_worker(channel: socket.socket, mother: int, stdin: int, stdout: int) -> None:
    """Runs in the fork and never returns."""
    status = 1
    try:
        channel.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(mother, signal.SIGKILL)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.close(stdin)
        os.close(stdout)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        from dashboard.lab import process

        status = process.main()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  this fork must never return into the parent's loop
        traceback.print_exc()
    finally:
        os._exit(status)


def bury(channel: socket.socket, children: set[int]) -> None:
    """Report each child that has ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.discard(pid)
            channel.sendall(f"ended {pid} {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main()
