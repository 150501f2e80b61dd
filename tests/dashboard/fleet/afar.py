"""Installations of a test: one real HTTP server that answers as its path says, and the setting that names them."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "rl_s3cret-of-the-fleet"
SUMMARY = {
    "version": "0.3.0",
    "database": {"name": "billing", "server_version": "16.4"},
    "health": "ok",
    "severity": {"critical": 0, "warnings": 0},
    "queues": [{"name": "mail", "ready": 12, "oldest_seconds": 90.5, "running": 2, "failed": 3}],
    "throughput": [60] * 60,
    "workers": {"alive": 2, "of": 3},
    "blocked_sessions": 4,
    "at": "2026-11-25T12:00:00Z",
}
LINE = {
    "name": "stale:mail", "severity": "losing", "text": "3 tasks of mail are stale.",
    "since": "2026-11-25T11:00:00Z", "url": "/admin/ops/stale/", "acknowledged": None,
}  # fmt: skip
STOPPED = {**LINE, "severity": "stopped", "text": "Nobody works on payouts.", "since": "2026-11-25T11:30:00Z"}
KNOWN = {**LINE, "text": "Somebody knows this.", "acknowledged": {"actor": "anna"}}
FOUND = {"kind": "task", "id": "4711", "text": "Task #4711 charge · READY", "url": "/admin/tasks/task/4711/"}


def summary_of(kind: str) -> Any:
    """The answer of an installation of this kind."""
    changes: dict[str, dict[str, Any]] = {
        "critical": {"health": "critical", "severity": {"critical": 1, "warnings": 2}},
        "warning": {"health": "warning", "severity": {"critical": 0, "warnings": 1}},
        "negative": {"blocked_sessions": -1},
        "nan": {"queues": [{**SUMMARY["queues"][0], "oldest_seconds": float("nan")}]},
        "hostile": {"version": "<script>alert(1)</script>\n" + "x" * 400},
        "bool": {"blocked_sessions": True},
        "many": {"queues": [{**SUMMARY["queues"][0], "name": f"queue-{at}"} for at in range(40)]},
        "short": {"throughput": [1] * 59},
        "huge": {"blocked_sessions": 10**400},
    }
    if kind == "list":
        return [SUMMARY]
    if kind == "bare":
        return {"version": "0.3.0"}
    return {**SUMMARY, **changes.get(kind, {})}


def lines_of(kind: str) -> list[Any]:
    if kind == "hostile":
        return [
            {**LINE, "text": "<b>hostile</b> " + "y" * 4000, "url": "javascript:alert(1)"},
            {**LINE, "text": "elsewhere", "url": "//evil.example/"},
            {**LINE, "text": "at sign", "url": "@evil.example/"},
        ]
    return {"critical": [STOPPED, LINE, KNOWN], "warning": [{**LINE, "severity": "of-tomorrow"}]}.get(kind, [])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        _root, kind, *rest = self.path.split("/")
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        what = rest[-1].partition("?")[0] if rest else ""
        statuses = {"token": 401, "right": 403, "error": 500, "no-api": 404}
        if kind in statuses:
            self.answer(statuses[kind], b"{}")
        elif kind == "redirect":
            self.send_response(302)
            self.send_header("Location", f"{self.server.url}/elsewhere/")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif kind == "silent" or (kind == "lazy" and self.server.is_slow.is_set()):
            self.server.over.wait(30)
        elif kind == "slow":
            self.drip()
        elif kind == "garbage":
            self.answer(200, b"<html>Welcome to nginx!</html>")
        elif kind == "bytes":
            self.answer(200, b'{"version": "\xff"}')
        elif kind == "deep":
            self.answer(200, b"[" * 100_000)
        elif kind == "large":
            self.answer(200, b" " * 600_000)
        else:
            bodies = {"summary": summary_of(kind), "attention": {"items": lines_of(kind)}, "find": {"items": [FOUND]}}
            self.answer(200, json.dumps(bodies.get(what, {})).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def drip(self) -> None:
        """One byte at a time, so that no single read takes long."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        while not self.server.over.wait(0.05):
            try:
                self.wfile.write(b" ")
            except OSError:
                return

    def log_message(self, *args: Any) -> None:
        """Quiet."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 500

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str]] = []
        self.over, self.is_slow = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *args: Any) -> None:
        """A connection that was cut is what these tests are about."""


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


@contextmanager
def free_port() -> Iterator[int]:
    """A port where nobody listens."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield unheard.getsockname()[1]


def setting(**urls: str) -> str:
    """ROWLOCK_FLEET with these names and addresses."""
    return ", ".join(f"{name}={url}|{TOKEN}" for name, url in urls.items())
