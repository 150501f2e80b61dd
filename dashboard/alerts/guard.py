"""Guard the sending of alerts: no private address, no file, no program, no service of this machine.

An audit hook of Python sees each connection with its resolved address, just before it is made: ours and those of every
library. So a name that resolves to another address the second time (DNS rebinding) is caught too.
https://docs.python.org/3/library/audit_events.html
"""

import contextlib
import logging
import mimetypes
import os
import sys
import threading
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from dashboard import conf

NAT64 = IPv6Network("64:ff9b::/96")  # carries an IPv4 address in its last 32 bits
UNICAST = IPv6Network("2000::/3")  # other addresses that are called global have other purposes
CONNECTIONS = ("socket.connect", "socket.sendto", "socket.sendmsg")
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "syslog.openlog", "syslog.syslog")
WATCHED = frozenset({*CONNECTIONS, *PROGRAMS, "socket.getaddrinfo", "open"})
TALKATIVE = [logging.getLogger(name) for name in ("apprise", "urllib3")]  # they write addresses, which hold secrets


class Forbidden(OSError):
    """The address of a channel leads to what no alert may reach."""


class ForbiddenAddress(Forbidden):
    """The receiver is at a private or local address; ROWLOCK_ALERT_PRIVATE=1 allows it."""


class Unchecked(Forbidden):
    """A proxy of the environment or a thread of XMPP connects, unchecked; ROWLOCK_ALERT_PRIVATE=1 allows it."""


class ForbiddenMeans(Forbidden):
    """It needs a file, a program or a service of this machine, which no alert may use."""


class Guard:
    """The reach of one sending; `refusal`: the first thing it was refused, because libraries hide errors."""

    def __init__(self, *, allows_private: bool) -> None:
        self.allows_private = allows_private
        self.proxies: frozenset[tuple[str, int]] = frozenset() if allows_private else frozenset(proxies())
        self.refusal: type[Forbidden] | None = None

    def refuse(self, kind: type[Forbidden]) -> None:
        self.refusal = self.refusal or kind
        raise kind(kind.__doc__)

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Raise Forbidden for an event of Python that no alert may cause."""
        if event in CONNECTIONS:
            self.check_address(arguments[-1])
        elif event == "socket.getaddrinfo":
            self.check_proxy(*arguments[:2])
        elif event in PROGRAMS or (event == "open" and not is_of_python(arguments[0])):
            self.refuse(ForbiddenMeans)

    def check_address(self, address: object) -> None:
        if not isinstance(address, tuple):
            self.refuse(ForbiddenMeans)  # a socket of this machine
        elif not self.allows_private:
            self.check_proxy(*address[:2])
            if not is_public(str(address[0])):
                self.refuse(ForbiddenAddress)

    def check_proxy(self, host: object, port: object) -> None:
        name = host.decode(errors="replace") if isinstance(host, bytes) else str(host)
        if (name.lower(), port) in self.proxies:
            self.refuse(Unchecked)


_here = threading.local()
_lock = threading.Lock()
_sendings = 0
_levels = [logging.NOTSET for _logger in TALKATIVE]


@contextlib.contextmanager
def guarded() -> Iterator[Guard]:
    """Guard this thread, and silence the loggers that would write addresses."""
    _install()
    with silence():
        _here.guard = Guard(allows_private=bool(conf.get("ALERT_PRIVATE")))
        try:
            yield _here.guard
        finally:
            _here.guard = None


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Silence the talkative loggers. Threads that send at once share the levels that the first one found."""
    global _sendings, _levels
    with _lock:
        if not _sendings:
            _levels = [logger.level for logger in TALKATIVE]
        _sendings += 1
        for logger in TALKATIVE:
            logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        with _lock:
            _sendings -= 1
            if not _sendings:
                for logger, level in zip(TALKATIVE, _levels, strict=True):
                    logger.setLevel(level)


@cache
def _install() -> None:
    folders_of_python()  # the hook must not import anything
    sys.addaudithook(_hook)  # cannot be removed, so it is added with the first message


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in WATCHED and (guard := getattr(_here, "guard", None)):
        guard.check(event, arguments)


def proxies() -> Iterator[tuple[str, int]]:
    """The hosts and ports of the proxies that the environment names."""
    for kind, url in getproxies().items():
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if kind != "no" and parts.hostname:
            yield parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def is_of_python(file: object) -> bool:
    """True for a file of Python, its packages and its tables, and for one that is open already (a number)."""
    if isinstance(file, int):
        return True
    path = os.path.abspath(os.fsdecode(file)) if isinstance(file, str | bytes | os.PathLike) else ""
    return path in mimetypes.knownfiles or path.startswith(folders_of_python())


@cache
def folders_of_python() -> tuple[str, ...]:
    spec = find_spec("apprise")
    packages = [str(Path(spec.origin).parents[1])] if spec and spec.origin else []
    folders = {sys.prefix, sys.base_prefix, *packages}
    return tuple(f"{each}/" for each in folders | set(map(os.path.realpath, folders)))


def inner(address: str) -> IPv4Address | IPv6Address:
    """The address that this one leads to: one of IPv6 may carry one of IPv4. Raises ValueError for a name."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        return IPv4Address(found.packed[12:]) if found in NAT64 else found.ipv4_mapped or found.sixtofour or found
    return found


def is_public(host: str) -> bool:
    """True for the text of an address that anybody on the internet could own."""
    try:
        found = inner(host)
    except ValueError:
        return False  # a name, which the kernel would resolve unseen
    return found.is_global and not found.is_multicast and (isinstance(found, IPv4Address) or found in UNICAST)
