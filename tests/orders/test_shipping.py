"""One e-mail for each shipped order: what is sent, what is tried again, and what becomes of the others meanwhile."""

import threading
from datetime import timedelta

import pytest
from django.core.mail.backends.base import BaseEmailBackend
from django.db import connection, connections
from django.utils import timezone
from psycopg.errors import LockNotAvailable

from dashboard.environment import mail_settings_of_url
from orders.models import Order
from orders.shipping import Mode, retry_seconds, ship
from tests.orders import orders
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
MODES = pytest.mark.parametrize("mode", Mode.values)


def due_now() -> None:
    """As if the pauses before the next attempts were over."""
    Order.objects.update(email_next_at=None)


@MODES
class TestSending:
    def test_each_shipped_order_gets_one_mail_and_no_other_does(self, smtp, mode):
        orders.placed(2)
        orders.mailed(2)
        due = orders.shipped(3, customer_email="anna@example.test")
        report = ship(mode)
        assert (report.sent, report.failed, report.unknown) == (3, 0, 0)
        assert {mail.subject for mail in smtp.accepted} == {f"Your order {order.pk} has been shipped" for order in due}
        assert len(smtp.accepted) == 3
        assert orders.states() == ["none"] * 2 + ["sent"] * 5

    def test_the_order_says_when_and_what_the_server_answered(self, smtp, mode):
        orders.shipped()
        before = timezone.now()
        ship(mode)
        order = Order.objects.get()
        assert (order.shipped_email_sent, order.email_attempts, order.email_next_at) == (True, 1, None)
        assert order.email_reply == "250 2.0.0 OK: queued as 1"
        assert before <= order.email_since <= timezone.now()

    def test_one_conversation_serves_a_whole_run(self, smtp, mode):
        orders.shipped(5)
        ship(mode)
        assert smtp.connections == 1

    def test_nothing_to_do_is_one_query_and_no_conversation(self, smtp, mode):
        orders.placed(3)
        orders.mailed(3)
        report = ship(mode)
        assert (report.rows.queries, report.rows.rounds, smtp.connections) == (1, 1, 0)

    def test_no_field_is_written_back_that_others_wrote_meanwhile(self, patient_smtp, mode):
        [order] = orders.shipped()
        hold = threading.Event()
        patient_smtp.rule("*", "accepted", until=hold)
        with running_ship(mode):
            wait_until(lambda: patient_smtp.accepted)
            if mode == Mode.MARK_FIRST:  # nobody can write a locked order
                Order.objects.filter(pk=order.pk).update(customer_email="moved@example.test")
            hold.set()
        stored = Order.objects.get()
        assert stored.email_state == "sent"
        assert stored.customer_email == ("moved@example.test" if mode == Mode.MARK_FIRST else order.customer_email)

    def test_a_limit_and_a_report_that_adds_up(self, smtp, mode):
        orders.shipped(5)
        report = ship(mode, limit=3)
        assert (report.sent, len(smtp.accepted)) == (3, 3)
        data = report.as_dict()
        assert data["candidates"] == data["sent"] + data["failed"] + data["unknown"] + data["already_done"]

    def test_a_dry_run_locks_the_orders_and_lets_them_go(self, smtp, mode):
        orders.shipped(2)
        versions = list(Order.objects.values_list("version"))
        report = ship(mode, dry_run=True, until_empty=True)
        assert (report.sent, smtp.accepted, smtp.connections) == (2, [], 0)
        assert orders.states() == ["none", "none"]
        assert list(Order.objects.values_list("version")) == versions

    def test_progress_may_end_the_run(self, smtp, mode):
        orders.shipped(5)
        assert ship(mode, progress=lambda rows: rows.done < 2).sent == 2


@MODES
class TestRefused:
    @pytest.mark.parametrize(("reply", "earliest", "latest"), [("451 4.3.0 later", 0, 3), ("550 5.1.1 no", 290, 610)])
    def test_it_is_tried_again_after_a_pause(self, smtp, mode, reply, earliest, latest):
        orders.shipped(customer_email="anna@example.test")
        smtp.rule("anna@example.test", "rcpt", reply=reply, times=1)
        report = ship(mode, until_empty=True)
        assert (report.sent, report.failed, report.unknown) == (0, 1, 0)
        order = Order.objects.get()
        assert (order.email_state, order.email_attempts, order.email_reply) == ("none", 1, reply)
        pause = order.email_next_at - timezone.now()
        assert timedelta(seconds=earliest) < pause < timedelta(seconds=latest)
        if earliest:
            assert ship(mode).rows.candidates == 0
        due_now()
        assert ship(mode).sent == 1
        assert Order.objects.get().email_attempts == 2

    def test_the_other_orders_are_sent(self, smtp, mode):
        orders.shipped(5)
        for place in (1, 3):
            smtp.rule(f"customer{place}@example.test", "data", reply="554 5.6.0 no")
        report = ship(mode)
        assert (report.sent, report.failed) == (3, 2)
        assert len(report.as_dict()["failures"]) == 2
        assert {line.split(": ")[-1] for line in report.problems} == {"554 5.6.0 no."}

    @pytest.mark.parametrize("address", ["", "two\nlines@example.test"])
    def test_an_address_that_no_server_would_take(self, smtp, mode, address):
        orders.shipped(customer_email=address)
        orders.shipped(2)
        report = ship(mode)
        assert (report.sent, report.failed) == (2, 1)
        assert Order.objects.filter(email_state="none", email_attempts=1).exclude(email_reply="").count() == 1

    def test_a_reply_that_postgresql_could_not_store(self, smtp, mode):
        orders.shipped()
        smtp.rule("*", "rcpt", reply="550 no\0such\x01user")
        assert ship(mode).failed == 1
        assert Order.objects.get().email_reply == "550 nosuch\x01user"


class TestUnanswered:
    HOW = pytest.mark.parametrize("how", [{"seconds": 5}, {"drop": True}], ids=["timeout", "dropped"])

    @HOW
    def test_send_first_tries_again_and_the_duplicate_can_be_recognised(self, smtp, how):
        orders.shipped()
        smtp.rule("*", "accepted", times=1, **how)
        assert ship(Mode.SEND_FIRST).failed == 1
        due_now()
        assert ship(Mode.SEND_FIRST).sent == 1
        assert (len(smtp.accepted), smtp.duplicates()) == (2, 1)

    @HOW
    def test_mark_first_leaves_it_unknown_and_tries_no_more(self, smtp, how):
        orders.shipped()
        smtp.rule("*", "accepted", times=1, **how)
        report = ship(Mode.MARK_FIRST)
        assert (report.sent, report.failed, report.unknown) == (0, 0, 1)
        assert "resolve_emails" in report.failure
        due_now()
        assert ship(Mode.MARK_FIRST).rows.candidates == ship(Mode.SEND_FIRST).rows.candidates == 0
        assert (orders.states(), len(smtp.accepted)) == (["unknown"], 1)


class TestOtherBackends:
    @MODES
    def test_files_instead_of_a_server(self, settings, tmp_path, mode):
        orders.shipped(2)
        use(settings, mail_settings_of_url(f"filemail:///{tmp_path}/mail", timeout=1))
        assert ship(mode).sent == 2
        assert "Message-ID: <order-" in "".join(path.read_text() for path in (tmp_path / "mail").iterdir())

    def test_one_that_fails_has_not_said_how_far_it_came(self, settings):
        orders.shipped()
        use(settings, mail_settings_of_url("dummymail://", timeout=1), backend=f"{__name__}.FailingBackend")
        assert ship(Mode.SEND_FIRST).failed == 1
        due_now()
        assert ship(Mode.MARK_FIRST).unknown == 1
        assert Order.objects.get().email_reply == "OSError: the disk is full"


class FailingBackend(BaseEmailBackend):
    def send_messages(self, messages):
        raise OSError("the disk is full")


def use(settings, values: dict, backend: str = "") -> None:
    """Put settings for e-mails in place, with another backend in them."""
    if backend and "MAILERS" in values:
        values = {"MAILERS": {"default": {"BACKEND": backend}}}
    elif backend:
        values = {"EMAIL_BACKEND": backend}
    for name, value in values.items():
        setattr(settings, name, value)


@MODES
class TestAServerInTrouble:
    def test_one_that_is_not_there_costs_three_attempts_and_no_order(self, smtp, mode):
        orders.shipped(10)
        smtp.stop()
        report = ship(mode)
        smtp.start()
        assert (report.sent, report.failed, report.rows.candidates) == (0, 3, 3)
        assert "refused" in report.stopped
        assert orders.states() == ["none"] * 10
        due_now()
        assert ship(mode).sent == 10
        assert smtp.duplicates() == 0

    def test_a_slow_one_stops_nobody_else(self, smtp, mode):
        orders.shipped(6)
        smtp.rule("customer2@example.test", "rcpt", seconds=60)
        report = ship(mode)
        assert (report.sent, report.failed) == (5, 1)
        assert "timed out" in Order.objects.get(customer_email="customer2@example.test").email_reply

    def test_one_that_hangs_up_before_each_message_is_tried_for_each(self, smtp, mode):
        orders.shipped(5)
        smtp.rule("*", "rcpt", drop=True)
        report = ship(mode)
        assert (report.failed, report.stopped) == (5, "")


class running_ship:
    """A run in a thread of its own; it has ended when the block has."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.report = ship(self.mode)
        finally:
            connections.close_all()

    def __enter__(self) -> "running_ship":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.thread.join()


class TestWhileTheMailIsOnItsWay:
    def test_send_first_holds_the_order(self, patient_smtp):
        [order] = orders.shipped()
        hold = threading.Event()
        patient_smtp.rule("*", "accepted", until=hold)
        with running_ship(Mode.SEND_FIRST):
            wait_until(lambda: patient_smtp.accepted)
            with session() as other, pytest.raises(LockNotAvailable):
                other.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE NOWAIT", [order.pk])
            assert ship(Mode.SEND_FIRST).rows.skipped_locked == 1
            hold.set()
        assert len(patient_smtp.accepted) == 1

    def test_mark_first_holds_nothing_and_says_who_is_at_it(self, patient_smtp):
        [order] = orders.shipped()
        hold = threading.Event()
        patient_smtp.rule("*", "accepted", until=hold)
        with running_ship(Mode.MARK_FIRST):
            wait_until(lambda: patient_smtp.accepted)
            with session() as other:
                other.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE NOWAIT", [order.pk])
            marked = Order.objects.get()
            assert (marked.email_state, marked.email_attempts, bool(marked.email_owner)) == ("sending", 1, True)
            assert ship(Mode.MARK_FIRST).rows.candidates == 0
            hold.set()
        assert orders.states() == ["sent"]


def test_the_outer_query_takes_the_index_of_pending_orders():
    orders.mailed(2000)
    orders.shipped(5)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE orders_order")
    plan = Order.objects.to_handle().order_by("pk").values_list("pk", flat=True)[:1000].explain()
    assert "orders_order_to_mail" in plan


@pytest.mark.parametrize(
    ("attempt", "is_permanent", "shortest", "longest"),
    [(1, False, 1, 2), (5, False, 16, 32), (40, False, 1800, 3600), (1, True, 300, 600), (40, True, 86400, 86400)],
)
def test_pauses_grow_and_are_longer_after_a_permanent_refusal(attempt, is_permanent, shortest, longest):
    assert retry_seconds(attempt, is_permanent=is_permanent, random=0.0) == shortest
    assert retry_seconds(attempt, is_permanent=is_permanent, random=1.0) == longest
