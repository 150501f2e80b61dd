"""Asking many installations at once: each is labelled right, none delays another, the token goes nowhere else."""

import socket
import ssl
import threading
import time

import pytest

from dashboard.fleet import asking
from dashboard.fleet.asking import LIMIT_SECONDS, Outcome, Problem, Target, Unanswered, ask_all, check_address
from tests.certificates import certificate
from tests.dashboard.fleet.afar import SUMMARY, TOKEN, free_port

PATHS = ("/api/v1/summary", "/api/v1/attention")
PATIENCE = 4.0  # on a machine that is busy with other tests; without the limit the slow ones take 30 s
LABELS = {
    "ok": None, "token": Problem.REFUSED, "right": Problem.RIGHT, "redirect": Problem.REDIRECT, "error": Problem.ERROR,
    "no-api": Problem.NO_API, "garbage": Problem.GARBAGE, "deep": Problem.GARBAGE,
    "bytes": Problem.GARBAGE, "large": Problem.LARGE,
    "slow": Problem.SLOW, "silent": Problem.SILENT,
}  # fmt: skip


def target(url: str, token: str = TOKEN) -> Target:
    return Target("one", url, token)


def ask(url: str, token: str = TOKEN) -> Outcome:
    return ask_all([target(url, token)], PATHS)[0]


def test_each_is_labelled_right_and_delays_nobody(afar):
    with free_port() as port, socket.create_server(("127.0.0.1", 0)) as frozen:
        urls = {kind: f"{afar.url}/{kind}" for kind in LABELS}
        urls |= {"down": f"http://127.0.0.1:{port}", "frozen": f"http://127.0.0.1:{frozen.getsockname()[1]}"}
        urls |= {"frozen in TLS": f"https://127.0.0.1:{frozen.getsockname()[1]}"}
        urls |= {"no TLS": f"https://{afar.url.removeprefix('http://')}", "no host": f"https://{'a' * 70}.example"}
        began = time.monotonic()
        outcomes = ask_all([target(url) for url in urls.values()], PATHS)
        took = time.monotonic() - began
    found = {kind: outcome.problem for kind, outcome in zip(urls, outcomes, strict=True)}
    frozen_ones = {"down": Problem.DOWN, "frozen": Problem.SILENT, "frozen in TLS": Problem.SILENT}
    assert found == {**LABELS, **frozen_ones, "no TLS": Problem.ERROR, "no host": Problem.DOWN}
    assert outcomes[0].answers == (SUMMARY, {"items": []})
    assert LIMIT_SECONDS <= took < PATIENCE


def test_what_is_cut_leaves_no_thread(afar):
    ask_all([target(f"{afar.url}/{kind}") for kind in ("slow", "silent")], PATHS)
    deadline = time.monotonic() + 20
    while threads := [thread for thread in threading.enumerate() if thread.name == "fleet one"]:
        assert time.monotonic() < deadline, "the connection was not cut"
        threads[0].join(1)


def test_the_certificates_of_this_machine_are_read_once(afar):
    asking.trusted.cache_clear()
    ask_all([target(f"https://{afar.url.removeprefix('http://')}")] * 50, PATHS)
    assert asking.trusted.cache_info().misses == 1, "not by each thread of the first look"


def test_a_token_goes_to_the_configured_host_alone(afar):
    assert ask(f"{afar.url}/redirect").problem is Problem.REDIRECT
    assert [path for path, _token in afar.asked] == ["/redirect/api/v1/summary"]
    assert afar.asked[0][1] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX-Forged: 1", "ü"])
def test_a_token_that_cannot_be_one_is_not_sent(afar, token):
    assert ask(f"{afar.url}/ok", token).problem is Problem.REFUSED
    assert afar.asked == []


def test_no_text_of_a_target_shows_its_token():
    assert TOKEN not in f"{target('https://a.example')!r} {target('https://a.example')}"


@pytest.mark.parametrize(
    ("address", "is_encrypted", "problem"),
    [
        ("127.0.0.1", False, None),
        ("::1", False, None),
        ("10.1.2.3", False, None),
        ("100.64.0.1", False, None),
        ("fd00::1", False, None),
        ("93.184.216.34", False, Problem.PLAIN),
        ("2606:2800:220:1::1", False, Problem.PLAIN),
        ("::ffff:93.184.216.34", False, Problem.PLAIN),
        ("93.184.216.34", True, None),
        ("169.254.169.254", True, Problem.ADDRESS),
        ("169.254.169.254", False, Problem.ADDRESS),
        ("::ffff:169.254.169.254", True, Problem.ADDRESS),
        ("64:ff9b::a9fe:a9fe", True, Problem.ADDRESS),
        ("2002:a9fe:a9fe::1", True, Problem.ADDRESS),
        ("fe80::1%eth0", True, Problem.ADDRESS),
        ("224.0.0.1", True, Problem.ADDRESS),
        ("0.0.0.0", True, Problem.ADDRESS),
    ],
)
def test_which_addresses_a_token_may_be_sent_to(address, is_encrypted, problem):
    if problem is None:
        check_address(address, is_encrypted=is_encrypted)
    else:
        with pytest.raises(Unanswered) as refused:
            check_address(address, is_encrypted=is_encrypted)
        assert refused.value.outcome == Outcome(problem=problem, detail=refused.value.outcome.detail)


def test_an_address_is_checked_before_anything_is_sent(afar, monkeypatch):
    monkeypatch.setattr(asking, "check_address", lambda *_, **__: check_address("93.184.216.34", is_encrypted=False))
    assert ask(f"{afar.url}/ok").problem is Problem.PLAIN
    assert afar.asked == []


def test_a_certificate_is_verified_before_the_token_is_sent(tmp_path, monkeypatch):
    trusted = certificate(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted)
    received: list[bytes] = []

    def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ports.append(server.getsockname()[1])
            is_up.set()
            for _ in range(3):
                with server.accept()[0] as plain:
                    try:
                        with context.wrap_socket(plain, server_side=True) as tab:
                            received.append(tab.recv(65536))
                            tab.sendall(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    except OSError:
                        received.append(b"")

    ports: list[int] = []
    is_up = threading.Event()
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert is_up.wait(10)
    asking.trusted.cache_clear()
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert ask(f"https://localhost:{ports[0]}").problem is Problem.CERTIFICATE
    monkeypatch.setenv("SSL_CERT_FILE", trusted)
    asking.trusted.cache_clear()
    try:
        assert ask(f"https://127.0.0.1:{ports[0]}").problem is Problem.CERTIFICATE, "of another name"
        assert ask(f"https://localhost:{ports[0]}").problem is Problem.REFUSED, "and a trusted one is answered"
    finally:
        asking.trusted.cache_clear()
    thread.join(10)
    assert [TOKEN.encode() in sent for sent in received] == [False, False, True]
