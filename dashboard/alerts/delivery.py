"""Send one message to one channel: our webhook for http and https, the library apprise for every other address.

Errors name the channel and never its address. A message may arrive twice, if a worker dies between sending and noting
it; both copies have the same id.
"""

import contextlib
import hmac
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from urllib.parse import urlencode, urlsplit
from uuid import NAMESPACE_URL, uuid4, uuid5

from django.utils import timezone

from dashboard import conf
from dashboard.alerts import channels, editing, guard
from dashboard.alerts.channels import Channel
from dashboard.alerts.guard import Forbidden, ForbiddenMeans, Unchecked
from dashboard.models import Incident
from dashboard.secrets import AddressLocked
from tasks.exceptions import RowlockError
from tasks.panels import Severity
from tasks.support.reading import one_line

TIMEOUT_SECONDS = 10.0
NOWHERE = "{schema}://"  # in apprise, the address of what is on this machine: its desktop, its log
STATES = {"opened": "", "grew": "Grew: ", "resolved": "Over: "}
KINDS = {"stopped": "failure", "losing": "warning", "slow": "warning"}  # of apprise, by severity; else: info


class AlertNotSent(RowlockError):
    """A channel did not take a message."""


@dataclass(frozen=True)
class Message:
    """The body of a webhook. `id` is the same for each sending of the same message.

    `incident`, which is not in the body, is the same for all messages about one incident.
    """

    id: str
    kind: str
    state: str
    severity: str
    title: str
    detail: str
    url: str
    at: str
    incident: str = ""

    @property
    def body(self) -> bytes:
        fields = asdict(self)
        del fields["incident"]
        return json.dumps(fields, ensure_ascii=False).encode()

    @property
    def headline(self) -> str:
        """The title with its state, for people."""
        return f"{STATES[self.state]}{self.title}"


def message_of(incident: Incident, state: str, size: int) -> Message:
    """The message about this state of the incident."""
    name = f"rowlock:{incident.opened_at.isoformat()}:{incident.pk}"
    times: dict[str, datetime | None] = {"grew": incident.grew_at, "resolved": incident.resolved_at}
    return Message(
        id=str(uuid5(NAMESPACE_URL, f"{name}:{state}:{size}")),
        kind=incident.kind,
        state=state,
        severity=Severity(incident.severity).name.lower(),
        title=incident.title,
        detail=incident.detail,
        url=incident.url,
        at=(times.get(state) or incident.opened_at).isoformat(),
        incident=str(uuid5(NAMESPACE_URL, name)),
    )


def test_message() -> Message:
    """A message that says that it is a test."""
    base, now = conf.get("URL"), timezone.now().isoformat()
    return Message(str(uuid4()), "test", "opened", "notice", "Test of a Rowlock alert", "Nothing happened.", base, now)


def deliver(incident_id: int, state: str, channel_name: str, size: int) -> str:
    """Send the message unless its incident or channel is gone. Raises AlertNotSent."""
    incident, channel = Incident.objects.filter(pk=incident_id).first(), channels.find(channel_name)
    if incident is None or channel is None:
        return "not sent: the incident or the channel is gone"
    send(channel, message_of(incident, state, size))
    return f"sent to {channel_name}"


def send(channel: Channel, message: Message) -> None:
    """Send it now. Raises AlertNotSent, whose text has the channel's name and no address."""
    try:
        problem = _send(channel.address, message)
    except (Forbidden, AddressLocked) as error:
        problem = type(error).__doc__ or ""
    except ImportError:
        problem = "It needs a package: `pip install 'rowlock[alerts]'`."
    except socket.gaierror:
        problem = "No host of this name was found."
    except Exception as error:  # noqa: BLE001  its text may hold the address
        problem = f"{type(error).__name__}."
    if channel.stored:
        editing.note(channel.name, problem)
    if problem:
        raise AlertNotSent(f"The channel {channel.name} did not take the message: {problem}") from None


def _send(address: str, message: Message) -> str:
    """The problem; empty if the receiver took it."""
    if address.lower().startswith(("http://", "https://")):
        return _post(address, message)
    return _notify(address, message)


def _notify(address: str, message: Message) -> str:
    """Send it by apprise. At PagerDuty the last message about an incident resolves what the first one opened."""
    import apprise  # optional, and slow to import

    if address.lower().startswith("pagerduty://"):
        address += f"{'&' if '?' in address else '?'}{urlencode({'action': 'map', 'dedup': message.incident})}"
    kind = "success" if message.state == "resolved" else KINDS.get(message.severity, "info")
    # As plain text it is escaped where e-mails are HTML and chats are Markdown.
    text = "\n\n".join(filter(None, (message.detail, message.url))) or message.title
    told = {"body": text, "title": one_line(message.headline), "body_format": "text"}
    with guard.guarded() as limits:
        receiver = apprise.Apprise.instantiate(address)
        if receiver is not None and NOWHERE in receiver.templates:
            limits.refuse(ForbiddenMeans)
        if address.lower().startswith("xmpp") and not limits.allows_private:
            limits.refuse(Unchecked)
        is_sent = receiver and receiver.notify(**told, notify_type=apprise.NotifyType(kind))
    if limits.refusal and not is_sent:
        raise limits.refusal
    if receiver is None:
        return "Its address is not one that apprise knows."
    return "" if is_sent else "The receiver refused it or did not answer."


def _post(address: str, message: Message) -> str:
    """POST the webhook. Redirects are not followed: any answer but 2xx is a failure."""
    parts = urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme.lower() == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)
    headers = {"Content-Type": "application/json", "User-Agent": "Rowlock"}
    if conf.get("ALERT_SECRET"):
        headers["X-Rowlock-Signature"] = signature(message.body, int(time.time()))
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    try:
        with guard.guarded():
            connection.connect()
            with cut_off(connection):
                connection.request("POST", target, message.body, headers)
                status = connection.getresponse().status
    finally:
        connection.close()
    return "" if 200 <= status < 300 else f"It answered {status}."


@contextlib.contextmanager
def cut_off(connection: http.client.HTTPConnection) -> Iterator[None]:
    """End the connection after TIMEOUT_SECONDS: a receiver that sends single bytes never exceeds a socket's timeout."""

    is_late = threading.Event()

    def cut() -> None:
        is_late.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)  # that of TLS would wait for the receiver

    timer = threading.Timer(TIMEOUT_SECONDS, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():  # half an answer can look like a whole one
        raise TimeoutError


def signature(body: bytes, at: int) -> str:
    """The header that proves the sender and the time: HMAC-SHA256 over `<time>.<body>`."""
    signed = hmac.digest(conf.get("ALERT_SECRET").encode(), f"{at}.".encode() + body, "sha256").hex()
    return f"t={at},v1={signed}"
