"""A way over TCP to a database server that can fall silent, as a network does that loses packets or a dead failover.

It can be closed too, as a server that has stopped: sessions end, and new ones are refused.
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
    """One client and its session of the server."""

    client: socket.socket
    server: socket.socket
    is_half_open: bool = False
    is_silent: bool = False
    thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Shut both sockets down first: a thread that waits for a socket which another closes ends with an error."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.server.close()

    def serve(self) -> None:
        """Pass bytes on until either side ends. Half open, nothing is; whoever speaks then is told by a reset.

        Silent, everything is taken and nothing told, not even to the server that its client has gone.
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
                        self.server.recv(65_536)  # lost on its way
                        continue
                    data = source.recv(65_536)
                    if not data:
                        return
                    (self.server if source is self.client else self.client).sendall(data)


@dataclass
class Relay:
    """`url` leads through it to the database."""

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
        """From now on every session there is hears nothing and knows nothing of it; new ones are well. Those it hit."""
        hit = [pair for pair in self.pairs if pair.client.fileno() >= 0]
        for pair in hit:
            pair.is_half_open = True
        return hit

    def silence(self) -> None:
        """From now on every byte is taken and none passed on, of the sessions there are and of new ones."""
        self.is_silent = True
        for pair in self.pairs:
            pair.is_silent = True

    def speak(self) -> None:
        """New sessions are well again; those that fell silent stay so for ever."""
        self.is_silent = False

    def close(self) -> None:
        """Every session is over, and whoever wants a new one is refused."""
        with self.listener:
            self.listener.shutdown(socket.SHUT_RDWR)
        for pair in self.pairs:
            with contextlib.suppress(OSError):
                pair.server.shutdown(socket.SHUT_RDWR)

    def reopen(self) -> None:
        """New sessions are served again, at the same address."""
        self.listener = socket.create_server(("127.0.0.1", self.listener_port))
        self.start()


def connected(host: str, port: int) -> socket.socket:
    """To the server; a host that is a folder holds its socket."""
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{host}/.s.PGSQL.{port}")
    return server


@contextlib.contextmanager
def relay(url: str) -> Iterator[Relay]:
    """A relay to the server's socket; at the end its sessions are over."""
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
