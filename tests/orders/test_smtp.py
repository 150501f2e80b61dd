"""How far a message had come when it failed: never out, refused, or out and unanswered."""

import socket

import pytest
from django.core.mail import EmailMessage

from dashboard.environment import mail_settings_of_url
from orders.mailer import NotSent, Unanswered, Unreachable
from tasks.compat import mail_backend
from tests.smtp import MailServer


def message(to: str = "anna@example.test", **fields: object) -> EmailMessage:
    return EmailMessage("Subject", "Text", "shop@example.test", [to], **fields)


@pytest.fixture
def backend(smtp):
    backend = mail_backend()
    yield backend
    backend.close()


def test_a_message_is_taken_and_the_reply_is_kept_while_the_connection_is(smtp: MailServer, backend):
    backend.open()
    assert backend.send_messages([message()]) == 1
    assert backend.last_reply == "250 2.0.0 OK: queued as 1"
    assert [mail.to for mail in smtp.accepted] == ["anna@example.test"]


def test_an_open_connection_serves_many_messages_and_one_opened_for_a_message_is_closed(smtp, backend):
    backend.send_messages([message()])
    assert backend.connection is None
    backend.open()
    backend.send_messages([message(), message()])
    backend.send_messages([message()])
    assert smtp.connections == 2


class TestNotSent:
    @pytest.mark.parametrize("when", ["rcpt", "data"])
    @pytest.mark.parametrize(("reply", "is_permanent"), [("450 4.2.0 later", False), ("550 5.1.1 no such user", True)])
    def test_refused_with_a_reply(self, smtp, backend, when, reply, is_permanent):
        smtp.rule("anna@example.test", when, reply=reply)
        with pytest.raises(NotSent) as refusal:
            backend.send_messages([message()])
        assert (refusal.value.reply, refusal.value.is_permanent) == (reply, is_permanent)

    def test_a_refusal_spoils_neither_the_connection_nor_the_next_message(self, smtp, backend):
        smtp.rule("anna@example.test", "data", reply="554 5.6.0 no")
        backend.open()
        with pytest.raises(NotSent):
            backend.send_messages([message()])
        assert backend.send_messages([message("bert@example.test")]) == 1
        assert smtp.connections == 1

    def test_the_connection_ends_before_the_message(self, smtp, backend):
        smtp.rule("*", "rcpt", drop=True)
        with pytest.raises(NotSent, match="closed") as failure:
            backend.send_messages([message()])
        assert (failure.value.is_permanent, smtp.accepted) == (False, [])

    def test_the_server_is_too_slow_before_the_message(self, smtp, backend):
        smtp.rule("*", "rcpt", seconds=5)
        with pytest.raises(NotSent, match="timed out"):
            backend.send_messages([message()])

    def test_a_header_that_cannot_be_written_is_refused_for_good(self, smtp, backend):
        with pytest.raises(NotSent, match="Header values") as refusal:
            backend.send_messages([message(headers={"X-Note": "two\nlines"})])
        assert refusal.value.is_permanent


class TestUnreachable:
    def test_nobody_listens(self, smtp, backend):
        smtp.stop()
        with pytest.raises(Unreachable, match="refused"):
            backend.send_messages([message()])
        smtp.start()
        assert backend.send_messages([message()]) == 1

    def test_somebody_listens_and_says_nothing(self, settings):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for name, value in mail_settings_of_url(f"smtp://127.0.0.1:{silent.getsockname()[1]}", timeout=0.5).items():
                setattr(settings, name, value)
            with pytest.raises(Unreachable, match="timed out"):
                mail_backend().send_messages([message()])


class TestUnanswered:
    @pytest.mark.parametrize("how", [{"seconds": 5}, {"drop": True}, {"reply": "nonsense"}])
    def test_the_message_is_out_and_no_answer_comes(self, smtp, backend, how):
        smtp.rule("*", "accepted", **how)
        with pytest.raises(Unanswered):
            backend.send_messages([message()])
        assert len(smtp.accepted) == 1

    def test_it_is_not_sent_again_by_itself(self, smtp, backend):
        backend.open()
        backend.send_messages([message()])
        smtp.rule("*", "accepted", drop=True)
        with pytest.raises(Unanswered):
            backend.send_messages([message()])
        assert len(smtp.accepted) == 2

    def test_the_next_message_gets_a_connection_of_its_own(self, smtp, backend):
        smtp.rule("*", "accepted", drop=True, times=1)
        backend.open()
        with pytest.raises(Unanswered):
            backend.send_messages([message()])
        assert backend.send_messages([message()]) == 1


class TestAWornConnection:
    @pytest.mark.parametrize("how", [{"drop": True}, {"reply": "421 4.7.0 enough messages"}])
    def test_it_is_replaced_once_when_the_server_ends_it_between_two_messages(self, smtp, backend, how):
        backend.open()
        backend.send_messages([message()])
        smtp.rule("*", "rcpt", times=1, **how)
        assert backend.send_messages([message()]) == 1
        assert (len(smtp.accepted), smtp.connections) == (2, 2)

    def test_a_fresh_one_is_not(self, smtp, backend):
        smtp.rule("*", "rcpt", drop=True)
        with pytest.raises(NotSent):
            backend.send_messages([message()])
        assert smtp.connections == 1

    def test_after_a_restart_of_the_server(self, smtp, backend):
        backend.open()
        backend.send_messages([message()])
        smtp.stop()
        smtp.start()
        assert backend.send_messages([message()]) == 1
