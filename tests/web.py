"""A real gunicorn as in production, except for its port and the tests' settings."""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests import databases
from tests.waiting import wait_until


@contextlib.contextmanager
def gunicorn(
    url: str, settings: str = "tests.settings", checkout: Path = databases.ROOT, **more: str
) -> Iterator[tuple[psutil.Process, int]]:
    """The web server on this database, with `more` in its environment: its process and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": settings, "PORT": str(port), **more}
    argv = [sys.executable, "-m", "gunicorn", "--log-level", "warning"]
    with subprocess.Popen(argv, cwd=checkout, env={**os.environ, **variables}) as process:
        try:
            wait_until(lambda: serves(port), seconds=60)
            yield psutil.Process(process.pid), port
        finally:
            process.terminate()
            process.wait(30)


def serves(port: int) -> bool:
    with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as tab:
        tab.request("GET", "/healthz")
        return tab.getresponse().status == 200
    return False
