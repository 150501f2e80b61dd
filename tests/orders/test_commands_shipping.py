"""`send_shipped_emails` as cron and operators use it."""

import json
import signal
import threading

import pytest
from django.db import connection

from orders.models import Order
from tests.commands import run, start
from tests.orders import orders
from tests.sessions import session, wait_until_blocked
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
LOCK = "SELECT FROM orders_order WHERE id = %s FOR UPDATE"
PID_OF_COMMAND = "SELECT pid FROM pg_stat_activity WHERE application_name = 'rowlock:cmd:send_shipped_emails'"


def pid_of_command() -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(PID_OF_COMMAND)
        return next(iter(cursor.fetchall()), (None,))[0]


class TestReport:
    def test_what_was_done_as_one_object(self, smtp):
        orders.placed(2)
        orders.shipped(3)
        outcome = run("send_shipped_emails", "--json")
        assert outcome.status == 0
        assert outcome.data == {
            "candidates": 3,
            "sent": 3,
            "unknown": 0,
            "skipped_locked": 0,
            "already_done": 0,
            "failed": 0,
            "rounds": 1,
            "queries": 1 + 1 + 3 * 2,
            "stopped": "",
            "failures": [],
        }

    def test_the_same_in_words(self, smtp):
        orders.shipped(2)
        outcome = run("send_shipped_emails")
        assert outcome.stdout == (
            "2 orders found: 2 e-mails sent, 0 failed, 0 unknown, 0 left to whoever holds them, 0 done by others.\n"
        )
        assert outcome.stderr == ""

    def test_nothing_to_do_is_well_and_costs_one_query(self, smtp):
        outcome = run("send_shipped_emails", "--json", "--until-empty")
        assert (outcome.status, outcome.data["queries"], outcome.data["rounds"]) == (0, 1, 1)

    def test_v0_is_silent_when_all_is_well(self, smtp):
        orders.shipped()
        outcome = run("send_shipped_emails", "-v0")
        assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "")


class TestOptions:
    def test_until_empty_goes_round_until_the_outer_query_is_empty(self, smtp):
        orders.shipped(2)
        assert run("send_shipped_emails", "--until-empty", "--json").data["rounds"] == 2

    def test_limit(self, smtp):
        orders.shipped(3)
        assert run("send_shipped_emails", "--limit", 2, "--json").data["sent"] == len(smtp.accepted) == 2

    @pytest.mark.parametrize("mode", ["send_first", "mark_first"])
    def test_mode(self, smtp, mode):
        orders.shipped()
        assert run("send_shipped_emails", "--mode", mode, "--json").data["sent"] == 1

    def test_a_dry_run_sends_nothing_and_says_so(self, smtp):
        orders.shipped()
        outcome = run("send_shipped_emails", "--dry-run")
        assert outcome.stdout.startswith("Dry run, nothing was changed. 1 orders found: 1 e-mails sent")
        assert (orders.states(), smtp.accepted) == (["none"], [])

    @pytest.mark.parametrize("argv", [("--mode", "both"), ("--limit", "0"), ("--on-locked", "steal"), ("7",)])
    def test_nonsense_is_a_usage_error(self, argv):
        assert run("send_shipped_emails", *argv).status == 2

    def test_the_help_says_what_each_mode_may_leave(self):
        shown = " ".join(run("send_shipped_emails", "--help").stdout.split())
        assert "Only this mode can send an e-mail twice" in shown
        assert "Only this mode can leave an e-mail that may or may not have been sent" in shown


class TestOnLocked:
    def test_skip_counts(self, smtp):
        held, _ = orders.shipped(2)
        with session() as other:
            other.execute(LOCK, [held.pk])
            outcome = run("send_shipped_emails", "--json")
        assert (outcome.status, outcome.data["sent"], outcome.data["skipped_locked"]) == (0, 1, 1)
        assert (outcome.stderr, "locked" in outcome.data) == ("", False)

    def test_report_says_who_holds_the_row(self, smtp):
        held, _ = orders.shipped(2)
        with session("nightly-report") as other:
            other.execute(LOCK, [held.pk])
            outcome = run("send_shipped_emails", "--on-locked", "report", "--json")
            pid = other.info.backend_pid
        assert (outcome.status, outcome.data["sent"], outcome.data["skipped_locked"]) == (0, 1, 1)
        [locked] = outcome.data["locked"]
        assert locked["id"] == held.pk
        assert "nightly-report" in locked["holder"]
        assert f"Order {held.pk} was left: Held by pid {pid}" in outcome.stderr

    def test_wait_waits_and_sends(self, smtp):
        [held] = orders.shipped()
        with session() as other:
            other.execute(LOCK, [held.pk])
            with start("send_shipped_emails", "--on-locked", "wait", "--json", env={"EMAIL_URL": smtp.url}) as process:
                wait_until_blocked(wait_until(pid_of_command, seconds=30))
                other.rollback()
                out, _ = process.communicate(timeout=30)
        assert json.loads(out)["sent"] == 1


class TestTrouble:
    def test_a_refused_mail_is_a_failure_that_names_the_order(self, smtp):
        order, _ = orders.shipped(2)
        smtp.rule("customer0@example.test", "rcpt", reply="550 5.1.1 no such user")
        outcome = run("send_shipped_emails", "--json")
        assert (outcome.status, outcome.data["sent"], outcome.data["failed"]) == (1, 1, 1)
        assert outcome.data["failures"] == [{"id": order.pk, "result": "failed", "reply": "550 5.1.1 no such user"}]
        assert f"Order {order.pk}: failed: 550 5.1.1 no such user." in outcome.stderr

    def test_a_server_that_is_not_there_is_told(self, smtp):
        orders.shipped(9)
        smtp.stop()
        outcome = run("send_shipped_emails", "--json")
        smtp.start()
        assert (outcome.status, outcome.data["candidates"]) == (1, 3)
        assert "the mail server cannot be reached" in outcome.stderr

    def test_unknown_fates_are_a_failure_that_says_what_to_do(self, smtp):
        orders.shipped(email_state="sending", email_owner="gone")
        outcome = run("send_shipped_emails")
        assert outcome.status == 1
        assert "resolve_emails" in outcome.stderr

    def test_an_isolation_level_that_cannot_work_is_told_as_it_is(self, smtp):
        orders.shipped()
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_isolation = 'serializable'")
            try:
                outcome = run("send_shipped_emails")
            finally:
                cursor.execute("RESET default_transaction_isolation")
        assert (outcome.status, "runs at SERIALIZABLE" in outcome.stderr) == (1, True)

    def test_the_first_signal_finishes_the_order_at_hand(self, patient_smtp):
        orders.shipped(5)
        hold = threading.Event()
        patient_smtp.rule("*", "accepted", until=hold, times=1)
        with start("send_shipped_emails", "--json", env={"EMAIL_URL": patient_smtp.url}) as process:
            wait_until(lambda: patient_smtp.accepted, seconds=30)
            process.send_signal(signal.SIGTERM)
            hold.set()
            out, err = process.communicate(timeout=30)
        assert (process.returncode, json.loads(out)["sent"]) == (143, 1)
        assert ("Interrupted" in err, "Traceback" in err) == (True, False)
        assert Order.objects.filter(email_state="sent").count() == len(patient_smtp.accepted) == 1
