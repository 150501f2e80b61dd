"""The gunicorn worker of the pages: threads get complete requests and never wait for a client.

gunicorn's threaded worker gives a thread to an incomplete request, so 18 clients that send half a request stop it.
Here one event loop reads and writes every connection, each with a deadline.
"""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from django.urls import get_resolver
from gunicorn.glogging import Logger
from gunicorn.http import get_parser, wsgi
from gunicorn.http.errors import ParseException
from gunicorn.sock import ssl_context
from gunicorn.workers.base import Worker

from tasks.framework.log_lines import JsonFormatter

TICK_SECONDS = 1.0
STOPPING_SECONDS = 2.0  # for incomplete requests when the worker is asked to stop
STREAM = "text/event-stream"
SLOW = (TimeoutError, OSError, asyncio.IncompleteReadError)  # the client is too slow or has disconnected


class Refused(Exception):
    """The request gets no thread; the client gets this status."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class Wait(NamedTuple):
    """One wait for a client, and the number of bytes held in memory during it."""

    transport: asyncio.WriteTransport
    held: int


class Left(Exception):
    """The client of a stream has disconnected or does not read, or the worker is to stop."""


class Answer:
    """Collects what gunicorn would send through a socket; what a stream has collected is sent at once."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_live = False

    def taken(self) -> list[bytes]:
        """The parts collected since the last time."""
        parts, self.parts = self.parts, []
        return parts

    def sendall(self, data: bytes) -> None:
        self.parts.append(data)

    send = sendall

    def gettimeout(self) -> float:
        return 0.0  # it never waits


class JsonLogger(Logger):
    """gunicorn's own lines as JSON."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for handler in (*self.error_log.handlers, *self.access_log.handlers):
            handler.setFormatter(JsonFormatter())


class ServingWorker(Worker):
    """Serves with gunicorn's `threads` threads.

    A deadline is for a whole part of the exchange: sending single bytes does not extend it.
    """

    alive: bool
    head_seconds = 10.0  # for the request line and the headers
    body_seconds = 30.0
    answer_seconds = 30.0  # for the client to read the response
    linger_seconds = 2.0  # for the client to close after the last response (RFC 9112, section 9.6)
    most_head = 65_536  # bytes
    most_body = 4 * 1024**2  # bytes; Django's own limit for forms is 2.5 MB, with a page that says so
    # Beyond these limits, the longest wait is cut off.
    most_waits = 500
    most_held = 64 * 1024**2  # bytes of incomplete bodies and unread responses

    def run(self) -> None:
        """Serve until the parent asks to stop."""
        self.threads = ThreadPoolExecutor(self.cfg.threads, thread_name_prefix="request")
        self.connections: set[Connection] = set()
        self.waits: dict[asyncio.Timeout, Wait] = {}  # oldest first
        asyncio.run(self.serve())

    async def serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        self.loop.add_signal_handler(signal.SIGTERM, stopping.set)
        options: dict[str, Any] = {"limit": self.most_head, "backlog": self.cfg.backlog}
        if self.cfg.is_ssl:
            options |= {"ssl": ssl_context(self.cfg), "ssl_handshake_timeout": self.head_seconds}
        servers = [await asyncio.start_server(self.connected, sock=each.sock, **options) for each in self.sockets]
        while self.alive and not stopping.is_set() and self.ppid == os.getppid():
            self.notify()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), TICK_SECONDS)
        self.alive = False
        for server in servers:
            server.close()
        await self.finish()

    async def finish(self) -> None:
        """Answer complete requests, and give incomplete ones STOPPING_SECONDS."""
        now = self.loop.time()
        for timeout in self.waits:
            if not timeout.expired():
                timeout.reschedule(min(timeout.when() or now, now + STOPPING_SECONDS))
        while self.connections and self.loop.time() < now + self.cfg.graceful_timeout:
            self.notify()
            await asyncio.sleep(0.05)
        self.threads.shutdown(wait=False)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        self.connections.add(connection)
        try:
            await connection.serve()
        except SLOW:
            writer.transport.abort()
        finally:
            writer.close()
            self.connections.discard(connection)

    @contextlib.asynccontextmanager
    async def wait(self, transport: asyncio.WriteTransport, seconds: float, held: int = 0) -> AsyncIterator[None]:
        """Wait for a client for at most `seconds`, with `held` bytes in memory. Raises TimeoutError."""
        async with asyncio.timeout(seconds if self.alive else min(seconds, STOPPING_SECONDS)) as timeout:
            self.waits[timeout] = Wait(transport, held)
            self.make_room()
            try:
                yield
            finally:
                self.waits.pop(timeout, None)

    def make_room(self) -> None:
        """Close the oldest connections beyond `most_waits`, then the oldest ones with bytes beyond `most_held`."""
        while len(self.waits) > self.most_waits:
            self.waits.pop(next(iter(self.waits))).transport.abort()
        while sum(wait.held for wait in self.waits.values()) > self.most_held:
            oldest = next(timeout for timeout, wait in self.waits.items() if wait.held)
            self.waits.pop(oldest).transport.abort()

    def respond(self, parsed: Any, connection: "Connection") -> tuple[list[bytes], bool]:
        """Run the application in a thread. Returns the rest of the response, and True if the connection stays open.

        `parsed`: the request as gunicorn parsed it, with its whole body.
        """
        client, server = connection.client, connection.server
        answer, began = Answer(), datetime.now(UTC)
        response, environ = None, {}
        try:
            self.cfg.pre_request(self, parsed)
            response, environ = wsgi.create(parsed, answer, client, server, self.cfg)
            environ["wsgi.multithread"] = True
            self.nr += 1
            if self.nr >= self.max_requests:
                self.alive = False
            if not self.alive or not self.cfg.keepalive:
                response.force_close()
            self.render(environ, response, answer, connection)
            self.log.access(response, parsed, environ, datetime.now(UTC) - began)
            return answer.parts, not response.should_close()
        except Left:
            return [], False
        except Exception as error:  # noqa: BLE001  any error is logged, and the client gets a 500
            parts = self.failure(parsed, client, error)
            return [] if answer.is_live else parts, False
        finally:
            self.cfg.post_request(self, parsed, environ, response)

    def render(self, environ: dict[str, Any], response: Any, answer: Answer, connection: "Connection") -> None:
        """Collect the response, or send a stream part by part. Raises Left."""
        parts = self.wsgi(environ, response.start_response)
        answer.is_live = any(header[0].lower() == "content-type" and header[1] == STREAM for header in response.headers)
        try:
            for part in parts:
                if part:
                    response.write(part)
                if answer.is_live:
                    self.send(answer.taken(), connection)
            response.close()
        finally:
            if hasattr(parts, "close"):
                parts.close()

    def send(self, parts: list[bytes], connection: "Connection") -> None:
        """Send these from the application's thread, and wait until the client has them. Raises Left."""
        if not self.alive or connection.reader.at_eof():
            raise Left
        if parts:
            try:
                asyncio.run_coroutine_threadsafe(connection.send(parts), self.loop).result()
            except (*SLOW, CancelledError) as error:
                raise Left from error

    def failure(self, parsed: Any, client: Any, error: Exception) -> list[bytes]:
        """gunicorn's own response to an error."""
        answer = Answer()
        self.handle_error(parsed, answer, client, error)
        return answer.parts


class Connection:
    """One connection; its requests are answered one after the other."""

    def __init__(self, worker: ServingWorker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.worker, self.reader, self.writer = worker, reader, writer
        self.client, self.server = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        writer.transport.set_write_buffer_limits(high=0)  # drain() then waits until all is sent

    async def serve(self) -> None:
        """Serve requests until the connection closes. Raises one of SLOW if the client cannot be answered."""
        seconds, is_kept = self.worker.head_seconds, True
        while is_kept:
            async with self.worker.wait(self.writer.transport, seconds):
                first = await self.reader.readexactly(1)
            parts, is_kept = await self.answer(first)
            await self.send(parts)
            seconds = float(self.worker.cfg.keepalive)
        await self.linger()

    async def send(self, parts: list[bytes]) -> None:
        """Send these; raises one of SLOW if the client does not read them."""
        async with self.worker.wait(self.writer.transport, self.worker.answer_seconds, sum(map(len, parts))):
            self.writer.writelines(parts)
            await self.writer.drain()

    async def answer(self, first: bytes) -> tuple[list[bytes], bool]:
        """Answer the request that begins with `first`. Returns the response, and True if the connection stays open."""
        try:
            parsed = await self.read(first)
        except TimeoutError:
            return refusal(HTTPStatus.REQUEST_TIMEOUT), False
        except Refused as refused:
            return refusal(refused.status), False
        except ParseException as error:
            return self.worker.failure(None, self.client, error), False
        worker = self.worker
        return await worker.loop.run_in_executor(worker.threads, worker.respond, parsed, self)

    async def read(self, first: bytes) -> Any:
        """Parse a request and read its body. Raises Refused, TimeoutError, or ParseException for bad headers."""
        worker = self.worker
        if len(worker.connections) > worker.cfg.worker_connections:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            async with worker.wait(self.writer.transport, worker.head_seconds):
                head = first + await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
        parser = get_parser(worker.cfg, [head], self.client)
        parsed = next(parser)
        headers = dict(parsed.headers)
        if "TRANSFER-ENCODING" in headers:  # Django would take the body for empty
            raise Refused(HTTPStatus.LENGTH_REQUIRED)
        length = int(headers.get("CONTENT-LENGTH", 0))
        if length > worker.most_body:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        async with worker.wait(self.writer.transport, worker.body_seconds, length):
            if "EXPECT" in headers:
                self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            parser.unreader.unread(await self.reader.readexactly(length))
        return parsed

    async def linger(self) -> None:
        """Let the client read the response: closing with unread input would reset the connection."""
        if self.writer.can_write_eof():
            self.writer.write_eof()
        async with self.worker.wait(self.writer.transport, self.worker.linger_seconds):
            while await self.reader.read(self.worker.most_head):
                pass


def refusal(status: HTTPStatus) -> list[bytes]:
    """A response with this status, after which the connection closes."""
    text = f"{status.phrase}\n".encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    return [head.encode(), f"Content-Length: {len(text)}\r\n\r\n".encode(), text]


def freeze_garbage() -> None:
    """Exclude everything loaded so far from full collections, during which all threads stop.

    Otherwise each one scans a hundred thousand objects of modules and models for nothing.
    """
    list(get_resolver().url_patterns)  # imports the modules of the pages
    gc.collect()
    gc.freeze()
