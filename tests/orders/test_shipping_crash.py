"""kill -9 between the server's "250 OK" and the commit, in both modes; and senders that only seem to be gone."""

import threading
from contextlib import contextmanager

import pytest
from django.db import connection

from orders.models import ABANDONED, Order, Sender
from orders.shipping import Mode, ship
from tests import commands
from tests.orders import orders
from tests.orders.test_shipping import running_ship
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
MODES = pytest.mark.parametrize("mode", Mode.values)

# The row is to be marked as sent, so the server has said 250; the update waits for whoever holds the advisory lock.
HOLD_THE_MARK = """
CREATE FUNCTION hold_the_mark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(4711);
    RETURN NEW;
END $$;
CREATE TRIGGER hold_the_mark BEFORE UPDATE ON orders_order FOR EACH ROW
WHEN (NEW.shipped_email_sent AND NOT OLD.shipped_email_sent) EXECUTE FUNCTION hold_the_mark()
"""
LET_GO = "DROP TRIGGER hold_the_mark ON orders_order; DROP FUNCTION hold_the_mark()"
WAITING = "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"


@pytest.fixture
def holding_the_mark():
    with connection.cursor() as cursor:
        cursor.execute(HOLD_THE_MARK)
        yield
        cursor.execute(LET_GO)


@contextmanager
def held():
    with session(autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(4711)")
        yield other


def kill_between_sent_and_marked(url: str, mode: str) -> None:
    """A process of its own sends one e-mail, has its 250, and dies before the row says so; its backend too."""
    with held() as holder:

        def backends():
            return holder.execute(WAITING, [holder.info.backend_pid]).fetchall()

        with commands.start("send_shipped_emails", "--mode", mode, env={"EMAIL_URL": url}) as process:
            wait_until(backends)
            process.kill()
            process.communicate(timeout=30)
        for (pid,) in backends():
            holder.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


def no_order_seems_to_be_at_work() -> bool:
    """The server has noticed every death: some milliseconds."""
    return Order.objects.filter(email_state="sending").count() == Order.objects.filter(ABANDONED).count()


@MODES
@pytest.mark.usefixtures("holding_the_mark")
def test_nothing_is_lost_and_what_is_left_equals_the_kills(smtp, mode):
    orders.shipped(8)
    kills = 3
    for _ in range(kills):
        kill_between_sent_and_marked(smtp.url, mode)
    assert len(smtp.accepted) == kills
    wait_until(no_order_seems_to_be_at_work)
    ship(mode, until_empty=True)
    duplicates, unknown = (kills, 0) if mode == Mode.SEND_FIRST else (0, kills)
    assert smtp.duplicates() == duplicates
    assert orders.states().count("unknown") == unknown
    assert orders.states().count("sent") == 8 - unknown
    assert len({mail.message_id for mail in smtp.accepted}) == 8


@MODES
def test_an_order_that_a_dead_sender_left_becomes_unknown_in_either_mode(smtp, mode):
    orders.shipped(email_state="sending", email_owner="web1:7:abcdef", email_attempts=1)
    report = ship(mode)
    assert (report.unknown, report.rows.candidates, smtp.accepted) == (1, 1, [])
    order = Order.objects.get()
    assert (order.email_state, order.email_owner, order.email_attempts) == ("unknown", "web1:7:abcdef", 1)
    assert "its sender web1:7:abcdef ended" in order.email_reply
    assert ship(mode).rows.candidates == 0


@MODES
def test_an_order_whose_sender_lives_is_left_to_it(smtp, mode):
    sender = Sender()
    orders.shipped(email_state="sending", email_owner=sender.introduce())
    assert ship(mode).rows.candidates == 0
    sender.close()
    wait_until(lambda: Order.objects.filter(ABANDONED).exists())
    assert ship(mode).unknown == 1


def test_a_sender_tells_the_host_and_the_process_and_is_gone_only_once():
    first, second = Sender(), Sender()
    ids = {first.introduce(), first.introduce(), second.introduce()}
    assert len(ids) == 2
    assert all(len(id.split(":")) == 3 for id in ids)
    first.close()
    second.close()


def test_a_sender_that_lives_on_without_its_session_settles_what_others_called_unknown(patient_smtp):
    orders.shipped()
    hold = threading.Event()
    patient_smtp.rule("*", "accepted", until=hold)
    with running_ship(Mode.MARK_FIRST):
        wait_until(lambda: patient_smtp.accepted)
        lose_the_senders_session()
        assert ship(Mode.MARK_FIRST).unknown == 1
        assert orders.states() == ["unknown"]
        hold.set()
    assert orders.states() == ["sent"]


def test_what_a_person_decided_meanwhile_stands(patient_smtp, caplog):
    [order] = orders.shipped()
    hold = threading.Event()
    patient_smtp.rule("*", "accepted", until=hold)
    with running_ship(Mode.MARK_FIRST):
        wait_until(lambda: patient_smtp.accepted)
        Order.objects.update(email_state="none", email_owner="", email_reply="a person wants it again")
        hold.set()
    assert orders.states() == ["none"]
    assert f"order {order.pk} was resolved while" in caplog.text


def lose_the_senders_session() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
