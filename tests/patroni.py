"""Patroni: three PostgreSQL nodes and etcd, each on a host of its own, of which Patroni keeps one the primary.

It takes root, iproute2 and Debian's packages in PROGRAMS.
"""

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from dashboard.embedded import cluster as runtime
from dashboard.processes import bound
from tests.chaos.hosts import SUBNET, Host
from tests.waiting import wait_until

# Each program, and the package that it comes with.
PROGRAMS = {"etcd": "etcd-server", "patroni": "patroni python3-etcd", "haproxy": "haproxy"}
SYSTEM_PATH = os.pathsep.join(("/usr/bin", "/usr/sbin", "/bin", "/sbin"))
ACCOUNT = "postgres"
# The shortest time to live that Patroni recommends: a primary that vanished is replaced once it has passed.
TIMES = {"ttl": 20, "loop_wait": 2, "retry_timeout": 5}
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "on",  # pg_rewind wants it
    "wal_log_hints": "on",
    "max_connections": 100,
    "shared_buffers": "64MB",
    "wal_keep_size": "512MB",
    "max_wal_senders": 8,
    # A primary that no standby hears any more gives up the connection.
    "wal_sender_timeout": "5s",
    "wal_receiver_timeout": "5s",
}
STREAMS = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
IN_STEP = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')"


@dataclass
class Node:
    """One PostgreSQL node on its host."""

    host: Host
    folder: Path
    account: pwd.struct_passwd
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def conninfo(self) -> str:
        return f"host={self.host.address} user=postgres connect_timeout=2"

    def start(self) -> None:
        """Start Patroni, which starts or joins PostgreSQL. What was left of a killed one has to be gone."""
        argv = [program("patroni"), str(self.folder / "patroni.json")]
        with (self.folder / "log").open("ab") as log, self.host.entered():
            self.process = subprocess.Popen(
                bound(argv, account=self.account),  # at its parent's death it stops PostgreSQL in order
                cwd="/",
                env={"PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)},
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def signal_all(self, number: signal.Signals) -> None:
        """A signal to every process of the host, again until no new one has appeared meanwhile."""
        sent: set[int] = set()
        while new := set(self.host.pids()) - sent:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            sent |= new

    def kill(self) -> None:
        """kill -9 of everything at once, and wait until it is gone."""
        self.signal_all(signal.SIGSTOP)
        self.signal_all(signal.SIGKILL)
        if self.process:
            self.process.wait()
        wait_until(lambda: not self.host.pids())

    def is_primary(self) -> bool:
        """True if its PostgreSQL answers and takes writes."""
        address = f"{self.conninfo} dbname=postgres"
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(address) as connection:
            return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
        return False

    def ask(self, path: str, body: dict[str, Any] | None = None, *, seconds: float = 60) -> tuple[int, str]:
        """Patroni's REST API: the status and text of its answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.host.address}:8008{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def log(self) -> str:
        return (self.folder / "log").read_text()


@dataclass
class Patroni:
    """The nodes. The caller's thread has to be on a host of their network."""

    nodes: list[Node]
    is_synchronous: bool  # what is acknowledged is on one standby too, and only such a one is promoted

    def url(self, name: str, **options: object) -> str:
        """The address of a database that leads to whichever node takes writes."""
        servers = ",".join(f"{node.host.address}:5432" for node in self.nodes)
        words = {"target_session_attrs": "read-write", **options}
        return f"postgres://postgres@{servers}/{name}?" + "&".join(f"{key}={value}" for key, value in words.items())

    def primary(self) -> Node:
        """The node that takes writes now; waits for one."""
        return wait_until(lambda: next((node for node in self.nodes if node.is_primary()), None), seconds=120)

    def others(self, node: Node) -> list[Node]:
        return [each for each in self.nodes if each is not node]

    def wait_until_whole(self, *, seconds: float = 180) -> Node:
        """Until every other node follows the primary, one of them synchronously if that is asked; the primary."""

        def is_whole() -> Node | None:
            with contextlib.suppress(psycopg.Error):
                node = next((node for node in self.nodes if node.is_primary()), None)
                if node is None:
                    return None
                with psycopg.connect(f"{node.conninfo} dbname=postgres", autocommit=True) as connection:
                    streaming = connection.execute(STREAMS).fetchone()[0]
                    synchronous = connection.execute(IN_STEP).fetchone()[0]
                if streaming == len(self.nodes) - 1 and synchronous >= int(self.is_synchronous):
                    return node
            return None

        return wait_until(is_whole, seconds=seconds, every=0.2)


@contextlib.contextmanager
def patroni(etcd: Host, hosts: list[Host], *, is_synchronous: bool = True) -> Iterator[Patroni]:
    """The nodes, all in step; gone with their data at the end."""
    for name in PROGRAMS:
        program(name)
    newest_binaries()
    account = pwd.getpwnam(ACCOUNT)
    started: list[subprocess.Popen[bytes]] = []
    with runtime.folder() as folder:
        folder.chmod(0o711)
        nodes = [Node(host, runtime.private_folder(folder / host.name, account), account) for host in hosts]
        try:
            started.append(start_etcd(etcd, runtime.private_folder(folder / "etcd", account), account))
            for node in nodes:
                write_configuration(node, etcd, is_synchronous)
            site = Patroni(nodes, is_synchronous)
            nodes[0].start()
            site.primary()
            for node in nodes[1:]:
                node.start()
            site.wait_until_whole()
            yield site
        finally:
            end_all([etcd, *hosts], started + [node.process for node in nodes if node.process])


def end_all(hosts: list[Host], started: "list[subprocess.Popen[bytes]]") -> None:
    """Kill what runs on these hosts, frozen or not."""
    for pid in (pid for host in hosts for pid in host.pids()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in started:
        process.wait()
    wait_until(lambda: not any(host.pids() for host in hosts))


def start_etcd(host: Host, folder: Path, account: pwd.struct_passwd) -> "subprocess.Popen[bytes]":
    """One member: its own outages are no part of these drills."""
    clients, peers = f"http://{host.address}:2379", f"http://{host.address}:2380"
    argv = [program("etcd"), "--name=etcd", f"--data-dir={folder}/data", f"--initial-cluster=etcd={peers}"]
    argv += [f"--{name}-client-urls={clients}" for name in ("listen", "advertise")]
    argv += [f"--{name}-peer-urls={peers}" for name in ("listen", "initial-advertise")]
    with (folder / "log").open("wb") as log, host.entered():
        argv = bound(argv, account=account, at_parents_death=signal.SIGKILL)
        process = subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def answers() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{clients}/health", timeout=2) as answer:
            return answer.status == 200
        return False

    wait_until(answers)
    return process


def write_configuration(node: Node, etcd: Host, is_synchronous: bool) -> None:
    """JSON is YAML, which Patroni reads."""
    address, folder = node.host.address, node.folder
    shared = {
        **TIMES,
        "maximum_lag_on_failover": 1 << 30,
        "synchronous_mode": is_synchronous,
        "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": SETTINGS},
    }
    rules = ["local all all trust", f"host all all {SUBNET} trust", f"host replication all {SUBNET} trust"]
    written = {
        "scope": "rowlock",
        "name": node.name,
        "restapi": {"listen": f"{address}:8008", "connect_address": f"{address}:8008"},
        "etcd3": {"host": f"{etcd.address}:2379"},
        "bootstrap": {"dcs": shared, "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}]},
        "postgresql": {
            "listen": f"{address}:5432",
            "connect_address": f"{address}:5432",
            "data_dir": str(folder / "data"),
            "bin_dir": str(newest_binaries()),
            "pgpass": str(folder / "pgpass"),
            "pg_hba": rules,
            "authentication": {"superuser": {"username": "postgres"}, "replication": {"username": "postgres"}},
            "remove_data_directory_on_rewind_failure": True,
            "remove_data_directory_on_diverged_timelines": True,
            "parameters": {"unix_socket_directories": str(folder)},
        },
    }
    (folder / "patroni.json").write_text(json.dumps(written))
    (folder / "patroni.json").chmod(0o644)


PROXY = """
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
    timeout check 2s
listen primary
    bind {address}:5432
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
"""


@contextlib.contextmanager
def haproxy(host: Host, site: Patroni) -> Iterator[None]:
    """HAProxy on a host of its own, which leads to whichever node Patroni calls the primary."""
    servers = (f"    server {node.name} {node.host.address}:5432 check port 8008\n" for node in site.nodes)
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as configuration:
        configuration.write(PROXY.format(address=host.address) + "".join(servers))
        configuration.flush()
        argv = bound([program("haproxy"), "-db", "-q", "-f", configuration.name], at_parents_death=signal.SIGKILL)
        with host.entered():
            process = subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL)
        with process:
            try:
                yield
            finally:
                process.kill()


def newest_binaries() -> Path:
    """Debian's newest PostgreSQL."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    assert found, "No PostgreSQL of Debian's: install its package postgresql."
    return max(found, key=lambda path: int(path.parent.name))


def program(name: str) -> str:
    """The path of a program; fails in words where it is not installed."""
    found = shutil.which(name, path=SYSTEM_PATH)
    assert found, f"No {name}: install Debian's packages: apt-get install {' '.join(PROGRAMS.values())} iproute2"
    return found
