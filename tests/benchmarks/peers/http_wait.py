"""A local HTTP server that answers after a while, and clients for it, alike for everybody; without dependencies.

`python http_wait.py PORT`: GET /MILLISECONDS is answered after so long. Connections stay open.
"""

import asyncio
import collections
import http.client
import os
import sys
import threading

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BACKLOG = 4096


class Serving(asyncio.Protocol):
    def connection_made(self, transport) -> None:
        self.transport = transport
        self.heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data
        while b"\r\n\r\n" in self.heard:
            request, _, self.heard = self.heard.partition(b"\r\n\r\n")
            milliseconds = int(request.split(b" ", 2)[1].lstrip(b"/"))
            asyncio.get_running_loop().call_later(milliseconds / 1000, self.answer)

    def answer(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(ANSWER)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Serving, "127.0.0.1", port, backlog=BACKLOG)
    print("serving", flush=True)
    await server.serve_forever()


class Asking(asyncio.Protocol):
    """One connection, which takes one request at a time."""

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.heard = b""

    def ask(self, milliseconds: int) -> "asyncio.Future[None]":
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % milliseconds)
        return self.answered

    def data_received(self, data: bytes) -> None:
        self.heard += data
        if len(self.heard) >= len(ANSWER):
            assert self.heard == ANSWER
            self.heard = b""
            if not self.answered.done():
                self.answered.set_result(None)

    def connection_lost(self, error) -> None:
        if not self.answered.done():
            self.answered.set_exception(error or ConnectionResetError())


_free = collections.deque()
_own = threading.local()


async def fetch(milliseconds: int) -> None:
    """One request over a connection that is free, or over a new one."""
    if _free:
        connection = _free.pop()
    else:
        port = int(os.environ["BENCH_HTTP_PORT"])
        _, connection = await asyncio.get_running_loop().create_connection(Asking, "127.0.0.1", port)
    await connection.ask(milliseconds)
    _free.append(connection)


def fetch_blocking(milliseconds: int) -> None:
    """One request over this thread's connection."""
    if not hasattr(_own, "connection"):
        _own.connection = http.client.HTTPConnection("127.0.0.1", int(os.environ["BENCH_HTTP_PORT"]))
    _own.connection.request("GET", f"/{milliseconds}")
    assert _own.connection.getresponse().read() == b"ok"


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(int(sys.argv[1])))
    else:
        uvloop.run(serve(int(sys.argv[1])))
