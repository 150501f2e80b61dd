"""Start the database, prepare the site, and run a worker and the web server until a signal."""

import asyncio
import contextlib
import errno
import json
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
from django.conf import settings

from dashboard.embedded import held, home, publish_stopping
from dashboard.embedded.server import POLL_SECONDS, EmbeddedServer, prepared
from dashboard.up.supervisor import Program, Supervisor, describe

HOST = "127.0.0.1"
SERVER_POLL_SECONDS = 0.2
LOGINS = {
    "generated": "admin / {password}   (shown this once)",
    "given": "admin, with the password in ADMIN_PASSWORD",
    "kept": "admin; its password was shown at the first start (.venv/bin/python manage.py changepassword admin)",
    "others": "with an account of yours (a new one: .venv/bin/python manage.py createsuperuser)",
}


class CannotStart(Exception):
    """The start is blocked from outside; the message says how and what to do."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a start: port, worker processes, demo data, and our own server or not."""

    port: int
    workers: int
    demo: bool
    embedded: bool

    @property
    def site(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def web(self) -> Program:
        config = str(settings.BASE_DIR / "gunicorn.conf.py")
        argv = [sys.executable, "-m", "gunicorn", "--chdir", str(settings.BASE_DIR), "--config", config]
        return Program("web", argv, {"PORT": str(self.port), "ROWLOCK_DEMO": "1" if self.demo else "0"})


def manage(name: str, *arguments: str) -> Program:
    """A `manage.py` command as a program; it finds the running server itself."""
    return Program(name, [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments])


def run(plan: Plan, supervisor: Supervisor) -> None:
    """Run everything until a signal asks to stop.

    Raises:
        CannotStart: the port is taken, or the database cannot be prepared.
        ServerError: this checkout runs already, or its PostgreSQL does not start.
    """
    if not plan.embedded:
        refuse_taken_port(plan.port)
        asyncio.run(serve(plan, supervisor))
        return
    folder = home(settings.VAR_DIR)
    runs = f"manage.py up, {plan.site}"
    with held(folder, runs):  # "in use by this process" is a better message than "port taken"
        refuse_taken_port(plan.port)
    with prepared(folder, runs=runs) as server:
        supervisor.at_stop = partial(publish_stopping, folder)
        asyncio.run(serve(plan, supervisor, server))


def refuse_taken_port(port: int) -> None:
    """Raise CannotStart if nobody can listen on this port; the message names the process that does."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            reason = f"taken by {listener(port)}" if error.errno == errno.EADDRINUSE else f"refused: {error.strerror}"
            raise CannotStart(f"Port {port} is {reason}. Choose another one with --port or PORT.") from None


def listener(port: int) -> str:
    """The process that listens on this port, if this user may see it."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "another process"


async def serve(plan: Plan, supervisor: Supervisor, server: EmbeddedServer | None = None) -> None:
    """Prepare the site, then keep the worker and the web server running until a signal asks to stop.

    `server`: a PostgreSQL of our own, which starts first and ends last.
    """
    supervisor.listen()
    async with kept(server, supervisor) if server else contextlib.nullcontext():
        report = await prepare(plan, supervisor)
        if supervisor.stopping.is_set():
            return
        tasks = [asyncio.create_task(supervisor.keep(plan.web()))]
        if plan.workers:
            worker = manage("worker", "run_worker", "--concurrency", str(plan.workers))
            tasks.append(asyncio.create_task(supervisor.keep(worker)))
        await announce(plan, supervisor, report)
        if plan.demo and not supervisor.stopping.is_set():
            tasks.append(asyncio.create_task(supervisor.keep(manage("demo", "direct_demo"), until_done=True)))
        await supervisor.stopping.wait()
        await supervisor.wind_down(tasks)


@contextlib.asynccontextmanager
async def kept(server: EmbeddedServer, supervisor: Supervisor) -> AsyncIterator[None]:
    """Keep the server running during the block, which begins once it accepts connections; then stop it.

    Raises ServerError if it ends before.
    """

    async def once() -> str:
        async with supervisor.console.pipe("postgres") as output:
            server.launch(output)
            process = server.process
            assert process
            while process.poll() is None:
                await asyncio.sleep(SERVER_POLL_SECONDS)
        return describe(process.returncode)

    keeping = asyncio.create_task(supervisor.keep_up("postgres", once))
    try:
        await asyncio.sleep(0)  # lets its launch begin
        while not (supervisor.stopping.is_set() or server.is_ready()):
            await asyncio.sleep(POLL_SECONDS)
        yield
    finally:
        supervisor.stopping.set()
        if supervisor.hurried_by and server.process:
            server.process.send_signal(signal.SIGQUIT)
        server.stop()
        await keeping


async def prepare(plan: Plan, supervisor: Supervisor) -> dict[str, Any]:
    """Run `prepare_site`. Returns its report, empty if a stop was requested meanwhile."""
    program = manage("setup", "prepare_site", "--json", "--demo" if plan.demo else "--no-demo")
    with tempfile.TemporaryFile() as answer:
        status = await supervisor.run(program, stdout=answer)
        answer.seek(0)
        if status == 0:
            return json.load(answer)
    if supervisor.stopping.is_set():
        return {}
    raise CannotStart(f"The site could not be prepared ({describe(status)}); the lines of `setup` above say why.")


async def announce(plan: Plan, supervisor: Supervisor, report: dict[str, Any]) -> None:
    """Print the address and the login once the web server answers."""
    while not await answers(plan.port):
        if await supervisor.stops_within(0.1):
            return
    login = LOGINS[report["login"]].format(password=report.get("password"))
    for line in ("", f"  Rowlock runs at {plan.site}admin/", f"  Log in as {login}", "  Ctrl-C stops all of it", ""):
        supervisor.console.raw(line)


async def answers(port: int) -> bool:
    """True if the web server answers a request, with any status."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
    except OSError:
        return False
    return answer.startswith(b"HTTP/")
