"""Ask the APIs of many installations at once, within one second in all.

Each has a thread of its own, so that one that is down, slow or frozen delays nobody. At the deadline its connection is
cut, and the label says how far it came. A redirect is never followed, so the token goes to the configured host alone.
"""

import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from dashboard.alerts.guard import inner

LIMIT_SECONDS = 1.0  # for name, connection, TLS and all answers together
MOST_BYTES = 500_000  # of one answer: fifty lines that need attention are 50 kB
TOKEN = re.compile(r"[\x21-\x7e]+")


class Problem(StrEnum):
    """Why an installation gave no state, in a word; `dashboard.fleet.words` has the sentences."""

    DOWN = "down"
    SILENT = "silent"  # accepts connections and sends nothing
    SLOW = "slow"  # began to answer
    CERTIFICATE = "certificate"
    PLAIN = "plain"  # http:// to a public address
    ADDRESS = "address"  # where no installation is
    REFUSED = "token"  # which is not accepted
    RIGHT = "right"
    REDIRECT = "redirect"
    NO_API = "no api"
    ERROR = "error"
    GARBAGE = "garbage"
    LARGE = "large"


@dataclass(frozen=True)
class Target:
    """One installation and how to ask it."""

    name: str
    url: str  # of its site, without a slash at the end
    token: str = field(repr=False)  # of its API; in no text and in no log


@dataclass(frozen=True)
class Outcome:
    """The answers of one installation, as JSON values, or why there are none."""

    answers: tuple[Any, ...] = ()
    problem: Problem | None = None
    detail: str = ""


class Unanswered(Exception):
    """The installation cannot be asked, or its answer is of no use."""

    def __init__(self, problem: Problem, detail: str = "") -> None:
        super().__init__(problem, detail)
        self.outcome = Outcome(problem=problem, detail=detail)


def ask_all(targets: Sequence[Target], paths: Sequence[str]) -> list[Outcome]:
    """The answers of each target to all of these paths, in the order of the targets, within LIMIT_SECONDS."""
    trusted()  # reads 20 ms of certificates: once and before, not in each thread and within its second
    deadline = time.monotonic() + LIMIT_SECONDS
    calls = [Call(target, paths) for target in targets]
    for call in calls:
        call.start()
    return [call.outcome_at(deadline) for call in calls]


class Call(threading.Thread):
    """One conversation with one installation. It may outlive its deadline, as in a lookup of a name: nobody waits."""

    def __init__(self, target: Target, paths: Iterable[str]) -> None:
        super().__init__(name=f"fleet {target.name}", daemon=True)
        self.target, self.paths = target, paths
        self.wire: Wire | None = None
        self.has_begun = False  # to answer
        self.outcome: Outcome | None = None

    def run(self) -> None:
        try:
            self.outcome = Outcome(self.answers())
        except Unanswered as reason:
            self.outcome = reason.outcome
        except TimeoutError:
            self.outcome = self.late()
        except ssl.SSLCertVerificationError as error:
            self.outcome = Outcome(problem=Problem.CERTIFICATE, detail=error.verify_message)
        except ssl.SSLError as error:
            self.outcome = Outcome(problem=Problem.ERROR, detail=error.reason or "TLS")
        except OSError as error:
            problem = Problem.ERROR if self.has_begun else Problem.DOWN
            self.outcome = Outcome(problem=problem, detail=error.strerror or type(error).__name__)
        except http.client.HTTPException as error:
            self.outcome = Outcome(problem=Problem.GARBAGE, detail=type(error).__name__)
        except (ValueError, RecursionError):
            self.outcome = Outcome(problem=Problem.GARBAGE, detail="no JSON")

    def outcome_at(self, deadline: float) -> Outcome:
        """The outcome, or at the deadline what is missing."""
        self.join(max(0.0, deadline - time.monotonic()))
        outcome = self.outcome
        if outcome is None:
            outcome = self.late()
            if self.wire:
                self.wire.cut()
        return outcome

    def late(self) -> Outcome:
        if self.has_begun:
            return Outcome(problem=Problem.SLOW)
        is_connected = self.wire is not None and self.wire.sock is not None
        return Outcome(problem=Problem.SILENT if is_connected else Problem.DOWN)

    def answers(self) -> tuple[Any, ...]:
        if not TOKEN.fullmatch(self.target.token):
            raise Unanswered(Problem.REFUSED)  # the error of `http.client` would show it
        self.wire = wire = Wire(self.target.url)
        try:
            return tuple(self.answer(wire, path) for path in self.paths)
        finally:
            wire.close()

    def answer(self, wire: "Wire", path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.target.token}", "Accept": "application/json"}
        wire.request("GET", f"{urlsplit(self.target.url).path}{path}", headers=headers)
        response = wire.getresponse()
        self.has_begun = True
        check_status(response.status)
        body = response.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise Unanswered(Problem.LARGE)
        return json.loads(body)


def check_status(status: int) -> None:
    """Raise Unanswered for anything but 200."""
    known = {200: None, 401: Problem.REFUSED, 403: Problem.RIGHT, 404: Problem.NO_API}
    if status not in known:
        problem: Problem | None = Problem.REDIRECT if 300 <= status < 400 else Problem.ERROR
    else:
        problem = known[status]
    if problem:
        raise Unanswered(problem, "" if status in known else str(status))


class Wire(http.client.HTTPConnection):
    """A connection to the host of a URL that another thread can cut at any moment."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.is_encrypted = parts.scheme == "https"
        self.default_port = 443 if self.is_encrypted else 80
        super().__init__(parts.hostname or "", parts.port, timeout=LIMIT_SECONDS)

    def connect(self) -> None:
        """Connect to the first address that accepts. Raises OSError, Unanswered for an address that is refused."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError("no name of a host") from error
        problem: OSError | None = None
        for *_rest, address in found:
            host, port = str(address[0]), int(address[1])
            check_address(host, is_encrypted=self.is_encrypted)
            try:
                plain = socket.create_connection((host, port), LIMIT_SECONDS)  # not the name again: it may have changed
            except OSError as error:
                problem = error
                continue
            self.sock = plain
            if self.is_encrypted:
                self.sock = trusted().wrap_socket(plain, server_hostname=self.host)
            return
        raise problem or OSError("no address")

    def cut(self) -> None:
        """End what another thread reads or writes."""
        if sock := self.sock:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of TLS would change what the thread uses


def check_address(address: str, *, is_encrypted: bool) -> None:
    """Raise Unanswered for an address that no token may be sent to.

    Without TLS a token can be read on its way, so only to this machine and to private networks. Link-local addresses
    are those of a cloud's own services, multicast ones of many machines.
    """
    ip = inner(address)
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        raise Unanswered(Problem.ADDRESS, str(ip))
    if not is_encrypted and ip.is_global:
        raise Unanswered(Problem.PLAIN, str(ip))


@cache
def trusted() -> ssl.SSLContext:
    """The certificates that this machine trusts, and those in SSL_CERT_FILE; read once."""
    return ssl.create_default_context()
