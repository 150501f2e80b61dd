"""A real HTTP server on loopback that records what is posted to it."""

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PASSWORD = "s3cr3tpa55"  # in the address of a channel


@dataclass
class Receiver:
    """`status`: what it answers; `location`: where it redirects to; `answers`: if set, when it answers."""

    port: int = 0
    status: int = 200
    location: str = ""
    answers: threading.Event | None = None
    posts: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _path, _headers, body in self.posts]


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver until the block ends."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.posts.append((self.path, dict(self.headers), body))
            if receiver.answers:
                receiver.answers.wait(60)
            self.send_response(receiver.status)
            if receiver.location:
                self.send_header("Location", receiver.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
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
