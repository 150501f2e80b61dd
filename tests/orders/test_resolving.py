"""E-mails that may or may not have been sent, resolved by a person: changes, refusals and the audit."""

import pytest

from orders.models import Order
from orders.shipping import Decision, Mode, resolve, ship
from tasks.models import Intervention
from tasks.support.audit import Who
from tests.commands import run
from tests.orders import orders
from tests.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)
ANNA = Who("anna", "page")


def unknown(number: int = 1) -> list[Order]:
    reply = "SMTPServerDisconnected: timed out"
    return orders.shipped(
        number, email_state="unknown", email_owner="web1:7:ab", email_attempts=1, email_reply=reply, version=3
    )


def test_resend_lets_the_next_run_send_it_again(smtp):
    [order] = unknown()
    assert resolve([order.pk], Decision.RESEND, ANNA).resolved == [order.pk]
    resolved = Order.objects.get()
    assert (resolved.email_state, resolved.email_owner, resolved.email_reply) == ("none", "", order.email_reply)
    assert ship(Mode.MARK_FIRST).sent == 1
    assert Order.objects.get().email_attempts == 2


def test_sent_ends_it(smtp):
    [order] = unknown()
    resolve([order.pk], Decision.SENT, ANNA)
    assert (Order.objects.get().email_state, Order.objects.get().shipped_email_sent) == ("sent", True)
    assert ship(Mode.SEND_FIRST).rows.candidates == 0


def test_each_order_leaves_an_intervention_with_its_versions():
    first, second = unknown(2)
    resolve([first.pk, second.pk], Decision.SENT, ANNA, reason="found in the server's log")
    kept = Intervention.objects.order_by("id")
    assert [entry.target for entry in kept] == [f"order:{first.pk}", f"order:{second.pk}"]
    assert {(entry.actor, entry.source, entry.action) for entry in kept} == {("anna", "page", "resolve-email as=sent")}
    assert {(entry.version_before, entry.version_after, entry.reason) for entry in kept} == {
        (3, 4, "found in the server's log")
    }


def test_what_is_refused_and_why():
    [held], [known], [moved], [free] = unknown(), orders.shipped(), unknown(), unknown()
    gone = free.pk + 1
    with session() as other:
        other.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE", [held.pk])
        result = resolve(
            [held.pk, known.pk, moved.pk, free.pk, gone], Decision.SENT, ANNA, versions={moved.pk: 2, free.pk: 3}
        )
    assert result.resolved == [free.pk]
    codes = {pk: refusal.code for pk, refusal in result.refused.items()}
    assert codes == {held.pk: "locked", known.pk: "known", moved.pk: "changed", gone: "missing"}
    assert Intervention.objects.count() == 1


def test_a_dry_run_changes_nothing():
    [order] = unknown()
    assert resolve([order.pk], Decision.SENT, ANNA, dry_run=True).resolved == [order.pk]
    assert orders.states() == ["unknown"]
    assert not Intervention.objects.exists()


class TestCommand:
    def test_it_resolves_and_says_so(self):
        first, second = unknown(2)
        outcome = run("resolve_emails", first.pk, second.pk, "--as", "sent", "--reason", "seen in the log", "--json")
        assert (outcome.status, outcome.data) == (0, {"resolved": 2, "refused": [], "ids": [first.pk, second.pk]})
        assert orders.states() == ["sent", "sent"]
        assert set(Intervention.objects.values_list("source", "reason")) == {("command", "seen in the log")}

    def test_some_refused_is_a_failure_and_the_others_are_done(self):
        [order], [known] = unknown(), orders.shipped()
        outcome = run("resolve_emails", order.pk, known.pk, "--as", "resend", "--json")
        assert (outcome.status, outcome.data["resolved"]) == (1, 1)
        assert outcome.data["refused"][0]["reason"] == "known"
        assert f"Order {known.pk}: its e-mail is `none`, not `unknown`" in outcome.stderr

    def test_the_same_order_twice_is_one(self):
        [order] = unknown()
        assert run("resolve_emails", order.pk, order.pk, "--as", "sent", "--json").data["resolved"] == 1

    @pytest.mark.parametrize("argv", [(), ("1",), ("1", "--as", "lost"), ("--as", "sent"), ("x", "--as", "sent")])
    def test_a_command_line_that_says_too_little(self, argv):
        assert run("resolve_emails", *argv).status == 2

    def test_a_dry_run_says_what_would_be(self):
        [order] = unknown()
        assert "1 would be resolved" in run("resolve_emails", order.pk, "--as", "sent", "--dry-run").stdout
        assert orders.states() == ["unknown"]

    def test_the_help_says_what_each_answer_may_do(self):
        shown = " ".join(run("resolve_emails", "--help").stdout.split())
        assert "the customer may get it twice" in shown
        assert "the customer gets none" in shown
