"""A real HTTP server on loopback that records what is posted to it.

As a proxy it stands for any host of HTTPS, whose certificate it shows.
"""

import contextlib
import json
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PASSWORD = "s3cr3tpa55"  # in the address of a channel


@dataclass
class Receiver:
    """`status`, `reply`: what it answers; `location`: where it redirects to; `answers`: if set, when it answers."""

    port: int = 0
    host: str = "127.0.0.1"
    status: int = 200
    reply: bytes = b""
    location: str = ""
    answers: threading.Event | None = None
    posts: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _path, _headers, body in self.posts]


@contextlib.contextmanager
def receiving(certificate: str = "", host: str = Receiver.host) -> Iterator[Receiver]:
    """A receiver until the block ends; as a proxy too, with the certificate of the hosts that it stands for."""
    receiver = Receiver(host=host)
    stands_for = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate:
        stands_for.load_cert_chain(certificate)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.posts.append((self.path, dict(self.headers), body))
            if receiver.answers:
                receiver.answers.wait(60)
            self.send_response(receiver.status)
            if receiver.location:
                self.send_header("Location", receiver.location)
            self.send_header("Content-Length", str(len(receiver.reply)))
            self.end_headers()
            self.wfile.write(receiver.reply)
            self.wfile.flush()

        def do_CONNECT(self) -> None:
            """Answer here the requests that come through the tunnel, which are meant for another host."""
            self.send_response(200)
            self.end_headers()
            self.connection = stands_for.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
            self.close_connection = False

        def finish(self) -> None:
            super().finish()
            self.connection.close()  # that of the tunnel is no one else's

        def log_message(self, *arguments: Any) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer((host, 0), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def told(receiver: Receiver) -> Counter[tuple[str, str]]:
    """How often each state of each kind came, the same id counted once."""
    return Counter((body["kind"], body["state"]) for body in {body["id"]: body for body in receiver.bodies}.values())
