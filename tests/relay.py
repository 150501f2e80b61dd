"""A TCP relay to a database server that can fall silent, like a network that loses packets.

It can also close, like a stopped server: sessions end, and new ones are refused.
"""

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from psycopg.conninfo import conninfo_to_dict

from tests.databases import name_of

RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@dataclass
class Pair:
    """One client and its server session."""

    client: socket.socket
    server: socket.socket
    is_half_open: bool = False
    is_silent: bool = False
    thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Shut both sockets down first: a thread that waits for a socket fails if another thread closes it."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.server.close()

    def serve(self) -> None:
        """Forward bytes until either side ends.

        Half open, nothing is forwarded, and a client that sends gets a reset. Silent, bytes are accepted and dropped,
        and the server does not even notice that its client left.
        """
        with self.client, contextlib.suppress(OSError):
            while True:
                for source in select.select([self.client, self.server], [], [], 0.05)[0]:
                    if self.is_silent:
                        if not source.recv(65_536):
                            return
                        continue
                    if self.is_half_open:
                        if source is self.client:
                            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                            return
                        self.server.recv(65_536)  # lost
                        continue
                    data = source.recv(65_536)
                    if not data:
                        return
                    (self.server if source is self.client else self.client).sendall(data)


@dataclass
class Relay:
    """`url` leads to the database through this relay."""

    url: str
    listener: socket.socket
    listener_port: int
    host: str
    port: int
    pairs: list[Pair] = field(default_factory=list)
    is_silent: bool = False
    thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        listener = self.listener
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.pairs.append(Pair(client, connected(self.host, self.port), is_silent=self.is_silent))
                self.pairs[-1].start()

    def half_open(self) -> list[Pair]:
        """Make all current sessions half open; new ones work. Returns the affected sessions."""
        hit = [pair for pair in self.pairs if pair.client.fileno() >= 0]
        for pair in hit:
            pair.is_half_open = True
        return hit

    def silence(self) -> None:
        """From now on accept and drop every byte, in current and new sessions."""
        self.is_silent = True
        for pair in self.pairs:
            pair.is_silent = True

    def speak(self) -> None:
        """New sessions work again; silent ones stay silent."""
        self.is_silent = False

    def close(self) -> None:
        """End every session and refuse new ones."""
        with self.listener:
            self.listener.shutdown(socket.SHUT_RDWR)
        for pair in self.pairs:
            with contextlib.suppress(OSError):
                pair.server.shutdown(socket.SHUT_RDWR)

    def reopen(self) -> None:
        """Serve new sessions again, at the same URL."""
        self.listener = socket.create_server(("127.0.0.1", self.listener_port))
        self.start()


def connected(host: str, port: int) -> socket.socket:
    """A socket to the server; a host that is a folder holds a Unix socket."""
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{host}/.s.PGSQL.{port}")
    return server


@contextlib.contextmanager
def relay(url: str) -> Iterator[Relay]:
    """A relay to the server; its sessions end with the block."""
    server = conninfo_to_dict(url)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    address = f"postgres://{server['user']}@127.0.0.1:{port}/{name_of(url)}"
    running = Relay(address, listener, port, str(server["host"]), int(server.get("port") or 5432))
    running.start()
    try:
        yield running
    finally:
        with running.listener, contextlib.suppress(OSError):
            running.listener.shutdown(socket.SHUT_RDWR)
        running.thread.join()
        for pair in running.pairs:
            pair.end()
