"""Clients that send slowly, half or nothing take no thread: the site answers beside them, and cuts them off."""

import contextlib
import http.client
import itertools
import os
import socket
import threading
from collections.abc import Iterator

import psutil
import pytest
from django.db import connection

from tests import databases
from tests.people import client_of
from tests.waiting import wait_until
from tests.web import gunicorn

pytestmark = pytest.mark.django_db(transaction=True)
HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Half"
HEAD = b"POST /admin/login/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
HALF_A_BODY = HEAD + b"Content-Length: 100\r\n\r\nusername=anna"
BEGINNINGS = {"nothing": b"", "half a head": HALF_A_HEAD, "half a body": HALF_A_BODY}
MANY = 200


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch):
    """The web server with one of the workers of tests/dashboard/impatient.py, or as it is deployed."""
    site = databases.named(os.environ["DATABASE_URL"], str(connection.settings_dict["NAME"]))

    @contextlib.contextmanager
    def serve(worker: str, *options: str) -> Iterator[tuple[psutil.Process, int]]:
        own = [f"--worker-class=tests.dashboard.impatient.{worker}"] if worker else []
        monkeypatch.setenv("GUNICORN_CMD_ARGS", " ".join([*own, *options]))
        with gunicorn(site) as served:
            yield served

    return serve


@contextlib.contextmanager
def holding(port: int, beginnings: list[bytes]) -> Iterator[list[socket.socket]]:
    """A connection for each of these, which has sent that much of a request."""
    with contextlib.ExitStack() as stack:
        held = []
        for beginning in beginnings:
            held.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)))
            held[-1].sendall(beginning)
        yield held


@contextlib.contextmanager
def dripping(held: list[socket.socket], *, every: float) -> Iterator[None]:
    """One more byte of each connection, again and again."""
    is_over = threading.Event()

    def drip() -> None:
        while not is_over.wait(every):
            for one in held:
                with contextlib.suppress(OSError):
                    one.send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def ask(port: int, path: str, cookie: str = "") -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as asked:
        asked.request("GET", path, headers={"Host": "localhost", "Cookie": cookie})
        answer = asked.getresponse()
        return answer.status, answer.read().decode()


def everything(held: socket.socket) -> bytes:
    """What the server sends until it closes; fails after the socket's timeout."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := held.recv(65_536):
            received += data
    return received


def exchange(port: int, sent: bytes) -> bytes:
    """The answer to this; half-closed at the end, so that the server need not wait for more."""
    with holding(port, [sent]) as [asked]:
        asked.shutdown(socket.SHUT_WR)
        return everything(asked)


def first_line(answer: bytes) -> bytes:
    return answer.partition(b"\r\n")[0]


def is_open(held: socket.socket) -> bool:
    held.setblocking(False)
    try:
        return held.recv(1) != b""
    except BlockingIOError:
        return True


def connections(web: psutil.Process) -> int:
    """How many clients the worker's process has."""
    [worker] = web.children()
    return sum(each.status == psutil.CONN_ESTABLISHED for each in worker.net_connections("tcp4"))


@pytest.mark.parametrize("worker", ["", "PatientWorker"])
def test_200_half_open_connections_do_not_keep_the_site_from_answering(serving, worker: str) -> None:
    cookie = f"sessionid={client_of('Viewers').cookies['sessionid'].value}"
    beginnings = list(itertools.islice(itertools.cycle([*BEGINNINGS.values(), HALF_A_HEAD]), MANY))
    with (
        serving(worker) as (_web, port),
        holding(port, beginnings) as held,
        dripping(held[3::4], every=1),
    ):
        for _ in range(20):
            assert ask(port, "/healthz") == (200, "ok")
        status, page = ask(port, "/admin/tasks/task/", cookie)
        assert (status, 'id="task-rows"' in page) == (200, True)
        assert not worker or all(map(is_open, held))


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_slow_client_is_cut_off_at_the_deadline(serving, beginning: str) -> None:
    with serving("ImpatientWorker") as (_web, port), holding(port, [BEGINNINGS[beginning]] * 20) as held:
        told = {first_line(everything(one)) for one in held}
    assert told == {b"HTTP/1.1 408 Request Timeout" if BEGINNINGS[beginning] else b""}


def test_a_byte_now_and_then_does_not_move_the_deadline(serving) -> None:
    beginnings = [b"GET /healthz HTTP/1.1\r\nX: ", HEAD + b"Content-Length: 100000\r\n\r\n"] * 10
    with (
        serving("ImpatientWorker") as (_web, port),
        holding(port, beginnings) as held,
        dripping(held, every=0.05),
    ):
        told = {first_line(everything(one)) for one in held}
    assert told <= {b"HTTP/1.1 408 Request Timeout", b""}


def test_a_client_that_takes_no_answers_is_cut_off_and_holds_no_thread(serving) -> None:
    many = b"GET /static/admin/js/vendor/jquery/jquery.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
    with serving("ImpatientWorker") as (web, port), holding(port, [many] * 30):
        assert ask(port, "/healthz") == (200, "ok")
        wait_until(lambda: connections(web) == 0)


def test_of_too_many_the_oldest_are_cut_off(serving) -> None:
    with serving("CrowdedWorker") as (web, port), holding(port, [HALF_A_HEAD] * 10) as first:
        wait_until(lambda: connections(web) == len(first))
        with holding(port, [HALF_A_HEAD] * 10) as second:
            assert [everything(one) for one in first] == [b""] * len(first)
            assert all(map(is_open, second))
        assert ask(port, "/healthz") == (200, "ok")


def test_of_too_many_bytes_the_oldest_are_given_up(serving) -> None:
    half = HEAD + b"Content-Length: 60000\r\n\r\nusername=anna"
    with serving("CrowdedWorker") as (web, port), holding(port, [HALF_A_HEAD, half]) as [small, first]:
        wait_until(lambda: connections(web) == 2)
        with holding(port, [half]) as [second]:
            assert everything(first) == b""
            assert is_open(second)
            assert is_open(small)


REFUSED = {
    "a body without its length": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"411 Length Required"),
    "a body that is too long": (HEAD + b"Content-Length: 5000000\r\n\r\n" + b"x" * 1_000_000, b"413"),
    "headers that are too long": (HEAD + b"X: " + b"x" * 100_000, b"431"),
    "no request": (b"hello\r\n\r\n", b"400 Bad Request"),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", b"400 Bad Request"),
}


def test_what_cannot_be_read_is_refused_in_words(serving) -> None:
    with serving("PatientWorker") as (_web, port):
        for name, (sent, words) in REFUSED.items():
            assert first_line(exchange(port, sent)).startswith(b"HTTP/1.1 " + words), name


def test_a_client_that_is_still_sending_gets_its_refusal(serving) -> None:
    """More than the kernel takes: closed at once, the connection would be reset, and the answer lost with it."""
    with serving("PatientWorker") as (_web, port):
        told = exchange(port, HEAD + b"Content-Length: 50000000\r\n\r\n" + b"x" * 50_000_000)
    assert first_line(told) == b"HTTP/1.1 413 Request Entity Too Large"


def test_a_client_that_asks_first_is_told_to_send_its_body(serving) -> None:
    with serving("PatientWorker") as (_web, port):
        head = HEAD + b"Content-Length: 13\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        with holding(port, [head]) as [asked]:
            assert first_line(asked.recv(100)) == b"HTTP/1.1 100 Continue"
            asked.sendall(b"username=anna")
            assert b"\r\nHTTP/1.1 403 Forbidden\r\n" in b"\r\n" + everything(asked)


def test_a_connection_serves_several_requests_bodies_and_all(serving) -> None:
    form, headers = "username=anna&password=x", {"Host": "localhost", "Expect": "100-continue"}
    requests = [("GET", "/healthz", ""), ("POST", "/admin/login/", form), ("HEAD", "/", "")]
    statuses = []
    with (
        serving("PatientWorker", "--keep-alive=600") as (_web, port),
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as kept,
    ):
        for method, path, body in requests * 2:
            kept.request(method, path, body, headers)
            answer = kept.getresponse()
            answer.read()
            statuses.append(answer.status)
            assert not answer.will_close
    assert statuses == [200, 403, 302] * 2  # no token: the form itself was read


def test_half_a_request_does_not_keep_the_server_from_stopping(serving) -> None:
    with (
        serving("PatientWorker", "--graceful-timeout=600") as (web, port),
        holding(port, [HALF_A_HEAD] * 3) as held,
    ):
        wait_until(lambda: connections(web) == len(held))
        web.terminate()
        web.wait(60)
