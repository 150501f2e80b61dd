"""Refuse connections to loopback, link-local, private and multicast addresses while an alert is sent.

An audit hook of Python sees each connection with its resolved address, just before it is made: ours and those of every
library. So a name that resolves to another address the second time (DNS rebinding) is caught too.
https://docs.python.org/3/library/audit_events.html
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from functools import cache
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

from dashboard import conf

NAT64 = IPv6Network("64:ff9b::/96")  # carries an IPv4 address in its last 32 bits
TALKATIVE = ("apprise", "urllib3")  # their loggers write addresses, which hold secrets
_here = threading.local()


class ForbiddenAddress(OSError):
    """The receiver is at a private or local address; ROWLOCK_ALERT_PRIVATE=1 allows it."""


def is_public(host: str) -> bool:
    """True for the text of an address that anybody on the internet could own."""
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return False  # a name, which the kernel would resolve unseen
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if found in NAT64:
            inner = ip_address(found.packed[12:])  # type: ignore[assignment]
        found = inner or found
    return found.is_global and not found.is_multicast


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Guard the connections of this thread, and silence the loggers that would write addresses."""
    _install()
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    _here.is_guarded = not conf.get("ALERT_PRIVATE")
    try:
        yield
    finally:
        _here.is_guarded = False
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@cache
def _install() -> None:
    sys.addaudithook(_hook)  # cannot be removed, so it is added with the first message


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("socket.connect", "socket.sendto") or not getattr(_here, "is_guarded", False):
        return
    address = arguments[-1]
    if not (isinstance(address, tuple) and is_public(str(address[0]))):
        raise ForbiddenAddress(ForbiddenAddress.__doc__)
