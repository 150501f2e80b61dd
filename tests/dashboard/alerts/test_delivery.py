"""Delivery to real receivers: webhooks, their signature, apprise, private addresses, and secrets in errors."""

import contextlib
import hmac
import logging
import os
import re
import socket
import subprocess
import threading
import time
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from django.utils import timezone

from dashboard.alerts import delivery, guard
from dashboard.alerts.channels import Channel
from dashboard.alerts.delivery import AlertNotSent
from dashboard.alerts.guard import ForbiddenMeans, Unchecked
from dashboard.models import Incident
from tests.certificates import certificate
from tests.commands import run
from tests.dashboard.alerts.receiver import Receiver, receiving
from tests.smtp import MailServer, smtp  # noqa: F401  a fixture

PASSWORD = "s3cr3t-pa55"


@pytest.fixture
def receiver(settings):
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_PRIVATE": True, "ALERT_SECRET": "key"}
    with receiving() as receiver:
        yield receiver


def send(address: str) -> None:
    delivery.send(Channel("ops", from_environment=address), delivery.test_message())


def test_a_webhook_has_the_contracts_body_and_a_signature_that_openssl_verifies(receiver: Receiver):
    send(f"http://127.0.0.1:{receiver.port}/hook?token={PASSWORD}")
    [(path, headers, body)] = receiver.posts
    assert path == f"/hook?token={PASSWORD}"
    assert set(receiver.bodies[0]) == {"id", "kind", "state", "severity", "title", "detail", "url", "at"}
    at, signed = re.fullmatch(r"t=(\d+),v1=([0-9a-f]{64})", headers["X-Rowlock-Signature"]).groups()
    argv = ["openssl", "dgst", "-sha256", "-hmac", "key"]
    found = subprocess.run(argv, input=f"{at}.".encode() + body, capture_output=True, check=True).stdout.decode()
    assert found.split()[-1] == signed


def test_a_redirect_is_not_followed(receiver: Receiver):
    receiver.status, receiver.location = 307, f"http://127.0.0.1:{receiver.port}/elsewhere"
    with pytest.raises(AlertNotSent, match="It answered 307"):
        send(f"http://127.0.0.1:{receiver.port}/hook")
    assert [path for path, _headers, _body in receiver.posts] == ["/hook"]


def test_a_receiver_that_sends_single_bytes_is_cut_off(receiver: Receiver, monkeypatch):
    """Each byte comes within the timeout of the socket. Half an answer is none, whatever its status."""
    monkeypatch.setattr(delivery, "TIMEOUT_SECONDS", 0.3)

    def drip(server: socket.socket) -> None:
        client, _address = server.accept()
        with client, contextlib.suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            for _ in range(100):
                time.sleep(0.03)
                client.sendall(b"x")
            client.sendall(b"\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=[server])
        thread.start()
        with pytest.raises(AlertNotSent, match="TimeoutError"):
            send(f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's own
def test_no_request_goes_to_a_private_address(receiver: Receiver, smtp: MailServer, settings):  # noqa: F811
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_PRIVATE": False}
    mail = f"mailto://localhost:{smtp.port}/?from=a@example.test&to=b@example.test&mode=insecure&format=text"
    names = ("localhost", "127.1", "2130706433", "0x7f000001", "017700000001", "[::ffff:127.0.0.1]", "[::1]", "0")
    webhooks = [f"{scheme}://{name}:{receiver.port}/" for scheme in ("http", "json") for name in names]
    for address in (*webhooks, mail):
        with pytest.raises(AlertNotSent, match=r"private or local address|not one that apprise"):
            send(address)
    assert (receiver.posts, smtp.connections) == ([], 0)


@pytest.mark.parametrize(
    ("host", "is_public"),
    [
        ("8.8.8.8", True), ("2001:4860:4860::8888", True), ("127.0.0.1", False), ("::1", False), ("10.1.2.3", False),
        ("169.254.169.254", False), ("fe80::1%eth0", False), ("224.0.0.1", False), ("ff02::1", False),
        ("::ffff:127.0.0.1", False), ("64:ff9b::7f00:1", False), ("0.0.0.0", False), ("localhost", False),
        ("::127.0.0.1", False), ("2002:7f00:1::", False), ("64:ff9b::808:808", True), ("::ffff:0:7f00:1", False),
    ],
)  # fmt: skip
def test_public_addresses(host, is_public):
    assert guard.is_public(host) is is_public


@pytest.mark.parametrize("proxy", ["http://Proxy.Example:3128", "proxy.example:3128", "socks5://proxy.example:3128"])
def test_a_proxy_chooses_no_address(receiver: Receiver, settings, monkeypatch, proxy):
    monkeypatch.setenv("http_proxy", proxy)
    send(f"http://127.0.0.1:{receiver.port}/")
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_PRIVATE": False}
    for event, arguments in (
        ("socket.getaddrinfo", ("proxy.example", 3128, 0, 1, 0)),
        ("socket.connect", (None, ("proxy.example", 3128))),
    ):
        with pytest.raises(Unchecked):
            guard.Guard(allows_private=False).check(event, arguments)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{receiver.port}")
    with pytest.raises(AlertNotSent, match="A proxy of the environment"):
        send("json://hooks.example/")
    assert len(receiver.posts) == 1


def test_no_file_no_program_and_nothing_of_this_machine_is_used(receiver: Receiver, tmp_path):
    """Private addresses are allowed here."""
    secret = tmp_path / "key.json"
    secret.write_text('{"text": "secret"}')
    for address in ("syslog://", f"workflows://127.0.0.1/a/b?template={secret}"):
        with pytest.raises(AlertNotSent, match="a program or a service of this machine"):
            send(address)
    with guard.guarded():
        for use in (secret.read_text, partial(os.system, "true"), partial(subprocess.run, ["true"]), os.fork):
            with pytest.raises(ForbiddenMeans):
                use()
        with socket.socket(socket.AF_UNIX) as local, pytest.raises(ForbiddenMeans):
            local.connect("/run/docker.sock")
    assert secret.read_text()


def test_sendings_at_once_restore_the_level_of_the_loggers():
    logger = logging.getLogger("urllib3")
    level = logger.level
    first, second = guard.guarded(), guard.guarded()
    first.__enter__()
    thread = threading.Thread(target=second.__enter__)
    thread.start()
    thread.join()
    first.__exit__(None, None, None)
    assert not logger.isEnabledFor(logging.CRITICAL), "the second one still sends"
    thread = threading.Thread(target=second.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert logger.level == level


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's own
def test_apprise_posts_and_mails(receiver: Receiver, smtp: MailServer):  # noqa: F811
    send(f"json://127.0.0.1:{receiver.port}/x")
    assert receiver.bodies[0]["title"] == "Test of a Rowlock alert"
    send(f"mailto://127.0.0.1:{smtp.port}/?from=a@example.test&to=b@example.test&mode=insecure&format=text")
    [mail] = smtp.accepted
    assert (mail.to, mail.subject) == ("b@example.test", "Test of a Rowlock alert")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's own
def test_markup_of_a_message_is_text_in_an_html_mail(receiver: Receiver, smtp: MailServer):  # noqa: F811
    markup = "<img src=x onerror=pwned><script>pwned</script>"
    message = replace(delivery.test_message(), title=f"Queue a\nBcc: c@example.test {markup}", detail=markup)
    address = f"mailto://127.0.0.1:{smtp.port}/?from=a@example.test&to=b@example.test&mode=insecure&format=html"
    delivery.send(Channel("ops", from_environment=address), message)
    [mail] = smtp.accepted
    assert "&lt;img" in mail.text
    assert "<img" not in mail.text
    assert mail.subject.startswith(r"Queue a\nBcc: c@example.test")


@pytest.fixture
def stand_in(settings, monkeypatch, tmp_path):
    """A server at which every request to Slack and PagerDuty arrives, with a certificate that is trusted."""
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_PRIVATE": True}
    path = certificate(tmp_path, "hooks.slack.com", "events.pagerduty.com")
    with receiving(path) as receiver:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{receiver.port}")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", path)
        for name in ("NO_PROXY", "no_proxy", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield receiver


def tell(address: str, *states: str) -> None:
    """Send the messages of one incident."""
    incident = Incident(
        pk=7, line="stale:mail", kind="stale", severity=1, title="2 tasks are stale.", detail="Its worker is dead.",
        url="https://ops.example/admin/", opened_at=timezone.now(), size=2,
    )  # fmt: skip
    for state in states:
        delivery.send(Channel("ops", from_environment=address), delivery.message_of(incident, state, 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's own
def test_pagerduty_resolves_what_it_opened(stand_in: Receiver):
    tell("pagerduty://routing-key@api-key/ops?component=queue", "opened", "grew", "resolved")
    opened, grew, resolved = stand_in.bodies
    [key] = {body["dedup_key"] for body in stand_in.bodies}
    assert [body["event_action"] for body in stand_in.bodies] == ["trigger", "trigger", "resolve"]
    assert resolved == {"routing_key": "routing-key", "event_action": "resolve", "dedup_key": key}
    assert opened["payload"]["summary"].startswith("2 tasks are stale.")
    assert grew["payload"]["summary"].startswith("Grew: ")
    assert (opened["payload"]["severity"], opened["payload"]["source"]) == ("critical", "ops")
    [(path, host)] = {(path, headers["Host"]) for path, headers, _body in stand_in.posts}
    assert (host, path) == ("events.pagerduty.com", "/v2/enqueue")
    tell("pagerduty://routing-key@api-key", "opened")  # another incident
    assert stand_in.bodies[-1]["dedup_key"] != key


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's own
def test_slack_gets_the_title_the_reason_and_the_link(stand_in: Receiver):
    stand_in.reply = b"ok"  # as Slack does
    tell("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7Q/", "opened", "resolved")
    [(path, host)] = {(path, headers["Host"]) for path, headers, _body in stand_in.posts}
    assert (host, path) == ("hooks.slack.com", "/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7Q")
    told = [(body["attachments"][0]["title"], body["attachments"][0]["text"]) for body in stand_in.bodies]
    text = "Its worker is dead.\n\nhttps://ops.example/admin/"
    assert told == [("2 tasks are stale.", text), ("Over: 2 tasks are stale.", text)]


@pytest.mark.parametrize("scheme", ["http", "json", "slack"])
def test_an_error_names_the_channel_and_no_secret(receiver: Receiver, caplog, scheme):
    caplog.set_level(logging.DEBUG)
    receiver.status = 500
    with pytest.raises(AlertNotSent) as caught:
        send(f"{scheme}://user:{PASSWORD}@127.0.0.1:{receiver.port}/{PASSWORD}")
    text = "".join(traceback.format_exception(caught.value))
    assert "The channel ops did not take the message" in text
    assert PASSWORD not in text + caplog.text


def test_the_command_says_who_took_it(receiver: Receiver, settings, db):
    good, bad = f"http://127.0.0.1:{receiver.port}/", "http://127.0.0.1:1/"
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_URLS": [good, bad]}
    assert run("test_alert", "env-1-http", "--json").data == {"sent": ["env-1-http"], "problems": []}
    outcome = run("test_alert")
    assert outcome.status == 4
    assert "The channel env-2-http did not take the message" in outcome.stderr
    assert run("test_alert", "nobody").status == 1


def test_the_docs_verify_a_signature():
    text = (Path(__file__).resolve().parents[3] / "docs" / "alerts.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(program, names)
    now = int(time.time())
    signed = {at: f"t={at},v1={hmac.new(b'key', b'%d.{}' % at, 'sha256').hexdigest()}" for at in (now, now - 600)}
    assert names["is_genuine"]("key", signed[now], b"{}")
    assert not names["is_genuine"]("other", signed[now], b"{}")
    assert not names["is_genuine"]("key", signed[now - 600], b"{}")
