"""Several hosts on one machine: network namespaces with addresses and names of their own, behind one switch.

Nothing of it touches the machine's own network. A host that is cut off loses its packets without a word, as when a
cable is pulled behind its switch: its own card is up, and nobody refuses anything. It takes root and iproute2.
"""

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg

from tests.postgres import PrivateServer, throw_away_server

PREFIX = "rowlock-test"
SUBNET = "10.77.0.0/24"
PASSWORD = "over the network"
CLONE_NEWUTS = 0x04000000
libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Host:
    """One host; `namespace` is its network, `switch` that of the switch, where its port has the host's name."""

    name: str
    address: str
    namespace: str
    switch: str

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Meanwhile no packet reaches it, and none of its own arrives anywhere."""
        ip(self.switch, f"link set {self.name} nomaster")
        try:
            yield
        finally:
            ip(self.switch, f"link set {self.name} master switch")

    def pids(self) -> list[int]:
        """The processes on the host."""
        network = os.stat(f"/run/netns/{self.namespace}").st_ino
        return [process.pid for process in psutil.process_iter() if network_of(process) == network]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is on the host: what it connects to or starts stays there."""
        with contextlib.ExitStack() as stack:
            for kind in ("net", "uts"):
                stack.callback(_join, stack.enter_context(open(f"/proc/thread-self/ns/{kind}")).fileno())
            with open(f"/run/netns/{self.namespace}") as network:
                _join(network.fileno())
            _checked(libc.unshare(CLONE_NEWUTS))
            socket.sethostname(self.name)
            yield


@contextlib.contextmanager
def network(*names: str) -> Iterator[list[Host]]:
    """Hosts that reach each other and nobody else; whatever happens, they are gone at the end."""
    require_rights()
    sweep()
    prefix = f"{PREFIX}-{os.getpid()}"
    switch = f"{prefix}-switch"
    hosts = [Host(name, f"10.77.0.{number}", f"{prefix}-{name}", switch) for number, name in enumerate(names, start=2)]
    try:
        build(switch, hosts)
        yield hosts
    finally:
        for namespace in (switch, *(host.namespace for host in hosts)):
            subprocess.run(["ip", "netns", "delete", namespace], stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def server_on(host: Host, **settings: str) -> Iterator[PrivateServer]:
    """A PostgreSQL on this host, which all others reach with PASSWORD, and this process through its socket."""
    with contextlib.ExitStack() as stack:
        with host.entered():
            server = stack.enter_context(throw_away_server(listen_addresses=host.address, **settings))
        with (server.data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {SUBNET} scram-sha-256\n")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{PASSWORD}'")
            connection.execute("SELECT pg_reload_conf()")
        yield PrivateServer(server)


def address_of(host: Host, url: str) -> str:
    """The URL of a database of the server on this host, for the other hosts."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.username}:{PASSWORD}@{host.address}:5432", query=""))


def require_rights() -> None:
    """Fails where there can be no hosts, in words: a test that did nothing would look like one that passed."""
    assert os.geteuid() == 0, "Hosts of their own are network namespaces, which only root may make: run this as root."
    assert shutil.which("ip"), "Hosts of their own are made by `ip`: install Debian's package iproute2."


def build(switch: str, hosts: list[Host]) -> None:
    for namespace in (switch, *(host.namespace for host in hosts)):
        _run(["ip", "netns", "add", namespace])
    ip(switch, "link add switch type bridge", "link set switch up")
    for host in hosts:
        ip(
            switch,
            f"link add {host.name} type veth peer name wire address {card_of(host)} netns {host.namespace}",
            f"link set {host.name} master switch up",
        )
        ip(host.namespace, f"address add {host.address}/24 dev wire", "link set lo up", "link set wire up")
    for host in hosts:
        # Known for ever: a host that nobody answers would soon refuse to send, and say that there is no route.
        others = (other for other in hosts if other is not host)
        ip(host.namespace, *(f"neigh replace {each.address} lladdr {card_of(each)} dev wire" for each in others))


def network_of(process: psutil.Process) -> int | None:
    """The namespace of a process that lives."""
    with contextlib.suppress(OSError, psutil.NoSuchProcess):
        if process.status() != psutil.STATUS_ZOMBIE:
            return os.stat(f"/proc/{process.pid}/ns/net").st_ino
    return None


def card_of(host: Host) -> str:
    """The address of its network card."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in host.address.split("."))


def sweep() -> None:
    """Removes what sessions of tests left that were killed."""
    for path in Path("/run/netns").glob(f"{PREFIX}-*"):
        if not psutil.pid_exists(int(path.name.split("-")[2])):
            subprocess.run(["ip", "netns", "delete", path.name], stderr=subprocess.DEVNULL)


def ip(namespace: str, *commands: str) -> None:
    """Commands of `ip` in one namespace."""
    _run(["ip", "-n", namespace, "-batch", "-"], "\n".join(commands))


def _run(argv: list[str], text: str = "") -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)} failed, which takes CAP_SYS_ADMIN and CAP_NET_ADMIN: {done.stderr}"


def _join(namespace: int) -> None:
    _checked(libc.setns(namespace, 0))


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
