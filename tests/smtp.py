"""A real SMTP server that refuses, delays, hangs or hangs up as a test asks.

It records a mail when it takes responsibility for it, before any reply. So `accepted` is what customers would find in
their inboxes.
"""

import asyncio
import contextlib
import email
import email.policy
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from aiosmtpd.smtp import SMTP, Envelope, Session

from dashboard.environment import mail_settings_of_url

FOREVER = 10_000
logging.getLogger("mail.log").setLevel(logging.WARNING)  # aiosmtpd logs every line of every conversation


@dataclass(frozen=True)
class Accepted:
    """One mail that the server took."""

    to: str
    message_id: str
    subject: str
    text: str
    at: float  # time.monotonic()


@dataclass
class Rule:
    """The treatment of the next `times` mails to one address, at one point of the conversation.

    `reply` replaces the usual one, `seconds` later or when `until` is set; `drop` closes the connection instead of a
    reply. At the point `accepted` the mail has been taken, whatever the reply.
    """

    when: Literal["rcpt", "data", "accepted"]
    reply: str = ""
    seconds: float = 0
    until: threading.Event | None = None
    drop: bool = False
    times: int = FOREVER


class MailServer:
    """Speaks SMTP in a thread; also the handler that aiosmtpd calls."""

    def __init__(self) -> None:
        self.accepted: list[Accepted] = []
        self.connections = 0
        self.seconds = 0.0  # delay of every mail
        self.rules: dict[str, Rule] = {}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        """The value for EMAIL_URL."""
        return f"smtp://127.0.0.1:{self.port}"

    def rule(self, address: str, when: Any, **what: Any) -> None:
        """From now on treat mails to `address` this way; `*` means all without their own rule."""
        self.rules[address] = Rule(when, **what)

    def duplicates(self) -> int:
        """The number of mails that were taken again, by their Message-IDs."""
        return sum(times - 1 for times in Counter(mail.message_id for mail in self.accepted).values())

    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self.loop).result(10)

    async def _listen(self) -> asyncio.Server:
        return await self.loop.create_server(self._conversation, "127.0.0.1", self.port, reuse_address=True)

    def stop(self) -> None:
        """Refuse new connections and cut current conversations off."""
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _conversation(self) -> SMTP:
        self.connections += 1
        return SMTP(self, hostname="mail.example.test", ident="test", loop=self.loop)

    async def handle_RCPT(self, server: SMTP, session: Session, envelope: Envelope, address: str, _: Any) -> str:
        reply = await self._by_rule(server, "rcpt", address)
        if not reply:
            envelope.rcpt_tos.append(address)
        return reply or "250 2.1.5 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        [to] = envelope.rcpt_tos
        if reply := await self._by_rule(server, "data", to):
            return reply
        await asyncio.sleep(self.seconds)
        self._take(to, envelope)
        return await self._by_rule(server, "accepted", to) or f"250 2.0.0 OK: queued as {len(self.accepted)}"

    def _take(self, to: str, envelope: Envelope) -> None:
        mail = email.message_from_bytes(envelope.content or b"", policy=email.policy.default)
        body = mail.get_body(("html", "plain"))
        text = body.get_content() if body else ""
        self.accepted.append(Accepted(to, mail["Message-ID"], mail["Subject"], text, time.monotonic()))

    async def _by_rule(self, server: SMTP, when: str, address: str) -> str:
        rule = self.rules.get(address) or self.rules.get("*")
        if rule is None or rule.when != when or not rule.times:
            return ""
        rule.times -= 1
        await asyncio.sleep(rule.seconds)
        while rule.until and not rule.until.is_set():
            await asyncio.sleep(0.01)
        if rule.drop:
            server.transport.abort()
        return rule.reply


@contextlib.contextmanager
def mail_server() -> Iterator[MailServer]:
    """A server that stops at the end."""
    server = MailServer()
    try:
        yield server
    finally:
        server.stop()


def use(settings: Any, server: MailServer, *, timeout: float) -> None:
    """Point Django's settings to the server, through the project's own backend."""
    for name, value in mail_settings_of_url(server.url, timeout=timeout).items():
        setattr(settings, name, value)


@pytest.fixture
def smtp(settings: Any) -> Iterator[MailServer]:
    """A real server with a client timeout of one second."""
    with mail_server() as server:
        use(settings, server, timeout=1)
        yield server


@pytest.fixture
def patient_smtp(smtp: MailServer, settings: Any) -> MailServer:
    """The same with a long timeout, for tests that delay its answer."""
    use(settings, smtp, timeout=60)
    return smtp
