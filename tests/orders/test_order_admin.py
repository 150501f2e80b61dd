"""Orders in the admin: pending first, the state of each e-mail, shipping by a button, resolving what is unknown."""

import pytest
from django.db import connection

from orders import admin
from orders.models import Order
from tasks import testing
from tasks.admin import read_only
from tasks.models import Intervention, Task
from tests.html import flat, tabs_of
from tests.orders import orders
from tests.people import client_of
from tests.sessions import session
from tests.tasks.plans import explain

pytestmark = pytest.mark.django_db(transaction=True)
LIST = "/admin/orders/order/"
SHIP = f"{LIST}patterns/shipped_emails/"
RESOLVE = f"{LIST}resolve/"
REPLY = "SMTPServerDisconnected: Connection unexpectedly closed: timed out"

MAIL_MANY = """
INSERT INTO orders_order (customer_email, shipped_at, shipped_email_sent, email_state)
SELECT 'a@example.test', now(), true, 'sent' FROM generate_series(1, 3000)
"""


def unknown(number: int = 1) -> list[Order]:
    return orders.shipped(number, email_state="unknown", email_owner="web1:7:ab", email_attempts=1, email_reply=REPLY)


def ids_on(page) -> list[int]:
    return [order.pk for order in page.context["cl"].result_list]


class TestList:
    def test_pending_orders_come_first_and_the_latest_of_them(self):
        [first], [placed], [mailed], [second] = orders.shipped(), orders.placed(), orders.mailed(), unknown()
        page = client_of("Viewers").get(LIST)
        assert ids_on(page) == [second.pk, first.pk, mailed.pk, placed.pk]

    def test_an_index_gives_that_order(self):
        orders.shipped(20)
        with connection.cursor() as cursor:
            cursor.execute(MAIL_MANY)
            cursor.execute("ANALYZE orders_order")
        assert "orders_order_pending_first" in Order.objects.pending_first()[:100].explain()

    def test_it_shows_state_version_and_who_holds_the_row(self):
        [order] = unknown()
        with session("nightly-report") as other:
            other.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE", [order.pk])
            page = client_of("Viewers").get(LIST).content.decode()
        for shown in ("Unknown", "v1", "nightly-report", "Row locked", REPLY):
            assert shown in page

    def test_only_what_needs_a_person_has_a_button(self):
        [order], _ = unknown(), orders.shipped(2)
        page = client_of("Operators").get(LIST).text
        assert page.count('data-action="resolve-email"') == 1
        assert f'name="seen" value="{order.pk}:{order.version}"' in page

    def test_the_states_are_tabs(self):
        [order], _ = unknown(), orders.shipped(2)
        page = client_of("Viewers").get(LIST, {"email_state__exact": "unknown"})
        assert ids_on(page) == [order.pk]
        assert '<a href="?email_state__exact=unknown" aria-current="page">Unknown<span' in flat(page.text)

    def test_each_tab_counts_its_orders(self):
        orders.placed(3), orders.shipped(2, email_state="sending", email_owner="a"), orders.mailed(4), unknown()
        client = client_of("Viewers")
        counts = {"All": "10", "Not sent": "3", "Sending": "2", "Sent": "4", "Unknown": "1"}
        assert tabs_of(client.get(LIST).text) == counts
        assert tabs_of(client.get(LIST, {"email_state__exact": "sent"}).text) == counts
        assert tabs_of(client.get(LIST, {"q": "customer1@example.test"}).text) == dict.fromkeys(counts, "")

    def test_beside_many_the_counts_stop_and_the_rest_is_estimated(self, monkeypatch):
        for module in (admin, read_only):
            monkeypatch.setattr(module, "COUNT_CAP", 5)
        orders.placed(7), orders.mailed(9), unknown()
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE orders_order")
        counts = {"All": "≈ 17", "Not sent": "5+", "Sending": "0", "Sent": "≈ 9", "Unknown": "1"}
        page = client_of("Viewers").get(LIST).text
        assert tabs_of(page) == counts
        assert "Rows: 5+" in flat(page)

    @pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
    def test_an_index_counts_the_states_beside_many_that_are_sent(self, mode):
        unknown()
        with connection.cursor() as cursor:
            cursor.execute(MAIL_MANY)
            cursor.execute("VACUUM ANALYZE orders_order")
        plan = explain(connection.connection, admin.NUMBERS, {"cap": 2}, mode=mode)
        assert plan.scans("orders_order") <= {"Index Only Scan", "Seq Scan"}
        assert plan.rows_read("orders_order") == 2 + 1

    def test_the_number_of_queries_does_not_grow_with_the_orders(self, django_assert_max_num_queries):
        orders.shipped(50)
        client = client_of("Operators")
        with django_assert_max_num_queries(22):
            client.get(LIST)


class TestShipping:
    def test_the_button_enqueues_one_run_and_shows_how_far_it_is(self, smtp):
        orders.shipped(3)
        client = client_of("Operators")
        page = client.get(LIST).content.decode()
        assert 'data-action="ship-emails"' in page
        page = client.get(SHIP).content.decode()
        assert "Only this mode can send an e-mail twice" in page
        assert "Only this mode can leave an e-mail that may or may not have been sent" in page
        assert not Task.objects.exists()
        answer = client.post(SHIP, {"mode": "mark_first", "limit": ""}, follow=True)
        assert answer.context["progress"].left == 3
        assert smtp.accepted == []
        testing.run_due()
        assert len(smtp.accepted) == 3
        shown = client.get(answer.redirect_chain[-1][0])
        assert (shown.context["progress"].left, shown.context["numbers"]["sent"]) == (0, 3)
        assert "data-live" not in shown.content.decode()

    def test_a_double_click_is_one_run(self):
        client = client_of("Operators")
        first = client.post(SHIP, {"mode": "send_first"})
        second = client.post(SHIP, {"mode": "send_first"})
        assert first.url == second.url
        assert (Task.objects.count(), Intervention.objects.count()) == (1, 1)
        assert "see how far it is" in client.get(LIST).content.decode()

    def test_the_next_run_may_come_when_the_first_has_ended(self, smtp):
        client = client_of("Operators")
        first = client.post(SHIP, {"mode": "send_first"})
        testing.run_due()
        assert client.post(SHIP, {"mode": "send_first"}).url != first.url

    def test_the_audit_knows_who_and_how(self):
        client_of("Operators").post(SHIP, {"mode": "mark_first", "limit": "7"})
        row = Intervention.objects.get()
        assert (row.actor, row.source, row.target) == ("anna", "page", "table:orders_order")
        assert row.action == "ship-emails limit=7 mode=mark_first"
        assert Task.objects.get().kwargs == {"until_empty": True, "mode": "mark_first", "limit": 7}

    def test_the_part_that_refreshes_itself_asks_for_the_whole_page_at_the_end(self, smtp):
        client = client_of("Operators")
        url = client.post(SHIP, {"mode": "send_first"}).url
        part = client.get(url, headers={"HX-Request": "true"})
        assert "<html" not in part.content.decode()
        assert "data-live" in client.get(url).content.decode()
        testing.run_due()
        assert client.get(url, headers={"HX-Request": "true"}).headers["HX-Refresh"] == "true"

    def test_what_failed_is_told_with_a_link_to_the_order(self, smtp):
        [order] = orders.shipped()
        smtp.rule("*", "rcpt", reply="550 5.1.1 <no> such user")
        client = client_of("Operators")
        url = client.post(SHIP, {"mode": "send_first"}).url
        testing.run_due()
        page = client.get(url).content.decode()
        assert "550 5.1.1 &lt;no&gt; such user" in page
        assert f"{LIST}{order.pk}/change/" in page

    @pytest.mark.parametrize("form", [{}, {"mode": "both"}, {"mode": "send_first", "limit": "-1"}])
    def test_a_form_that_says_nonsense_enqueues_nothing(self, form):
        answer = client_of("Operators").post(SHIP, form)
        assert (answer.status_code, "errorlist" in answer.text) == (400, True)
        assert not Task.objects.exists()

    @pytest.mark.parametrize("group", ["Viewers", "Account managers"])
    def test_who_may_only_see_is_told_which_right_is_missing(self, group):
        client = client_of(group)
        page = flat(client.get(LIST).content.decode())
        assert "orders.ship_order" in page
        assert 'data-action="ship-emails" disabled' in page
        assert client.get(SHIP).status_code == 403
        assert client.post(SHIP, {"mode": "send_first"}).status_code == 403
        assert not Task.objects.exists()

    def test_it_is_a_post_and_asks_for_a_token(self):
        from django.test import Client

        client = client_of("Operators")
        client.get(SHIP)
        strict = Client(enforce_csrf_checks=True)
        strict.cookies = client.cookies
        assert strict.post(SHIP, {"mode": "send_first"}).status_code == 403
        assert not Task.objects.exists()

    def test_runs_of_others_are_not_shown_under_its_address(self):
        client = client_of("Operators")
        task = Task.objects.create(task_path="tests.tasks.handlers.nothing")
        assert client.get(f"{SHIP}{task.pk}/").status_code == 404
        assert client.post(f"{LIST}patterns/nothing/", {}).status_code == 404


class TestResolving:
    def resolve(self, *rows: Order, group: str = "Operators", **form: str):
        seen = [f"{order.pk}:{order.version}" for order in rows]
        return client_of(group).post(
            RESOLVE, {"seen": seen, "as": "sent", "reason": "seen in the log", **form}, follow=True
        )

    def test_the_page_of_an_unknown_one_shows_the_reply_and_both_answers(self):
        [order] = unknown()
        page = client_of("Operators").get(f"{LIST}{order.pk}/change/").content.decode()
        for shown in (REPLY, f"&lt;order-{order.pk}-shipped@", 'value="resend"', 'value="sent"', "resolve_emails"):
            assert shown in page
        assert page.count('data-action="resolve-email"') == 2

    def test_the_button_of_a_row_asks_first(self):
        [order] = unknown()
        page = client_of("Operators").post(RESOLVE, {"seen": f"{order.pk}:{order.version}"})
        assert (page.status_code, page.text.count('data-action="resolve-email"')) == (200, 2)
        assert orders.states() == ["unknown"]
        assert client_of().post(RESOLVE, {"seen": f"{order.pk}:{order.version}"}).status_code == 403

    def test_the_page_of_any_other_has_no_such_form(self):
        [order] = orders.shipped()
        assert "resolve-email" not in client_of("Operators").get(f"{LIST}{order.pk}/change/").content.decode()

    @pytest.mark.parametrize(("answer", "state"), [("resend", "none"), ("sent", "sent")])
    def test_one(self, answer, state):
        [order] = unknown()
        page = self.resolve(order, **{"as": answer})
        assert f'1 e-mail resolved. <a href="{LIST}{order.pk}/change/">{order.pk}</a>' in page.text
        assert orders.states() == [state]
        row = Intervention.objects.get()
        assert (row.actor, row.action, row.reason) == ("anna", f"resolve-email as={answer}", "seen in the log")

    def test_many_chosen_in_the_list(self):
        rows = unknown(3)
        orders.shipped(2)
        client = client_of("Operators")
        ticked = {"action": "resolve_emails", "_selected_action": [row.pk for row in Order.objects.all()]}
        preview = client.post(LIST, ticked)
        assert sorted(one["order"].pk for one in preview.context["unknown"]) == [row.pk for row in rows]
        assert "3 e-mails resolved." in self.resolve(*rows).content.decode()
        assert orders.states() == ["sent"] * 3 + ["none"] * 2

    def test_choosing_none_that_is_unknown_says_so(self):
        [order] = orders.shipped()
        ticked = {"action": "resolve_emails", "_selected_action": [order.pk]}
        page = client_of("Operators").post(LIST, ticked, follow=True)
        assert "None of these orders has an e-mail that may have been sent." in page.content.decode()

    def test_an_order_that_moved_on_is_refused_and_shown_as_it_is(self):
        [order] = unknown()
        Order.objects.update(email_reply="noted by somebody else")
        answer = self.resolve(order)
        assert answer.status_code == 409
        page = answer.content.decode()
        assert "it changed since you looked (version 1, now 2)" in page
        assert "noted by somebody else" in page
        assert orders.states() == ["unknown"]

    def test_the_second_click_finds_it_resolved(self):
        [order] = unknown()
        self.resolve(order)
        answer = self.resolve(order)
        assert (answer.status_code, Intervention.objects.count()) == (409, 1)

    def test_a_reason_is_needed(self):
        [order] = unknown()
        answer = self.resolve(order, reason=" ")
        assert (answer.status_code, orders.states()) == (400, ["unknown"])
        assert "This needs a reason" in answer.content.decode()

    @pytest.mark.parametrize("form", [{"as": "lost"}, {"seen": "7"}, {"seen": "x:1"}, {"seen": ""}])
    def test_a_form_that_no_page_of_ours_made(self, form):
        [order] = unknown()
        assert "Choose orders" in self.resolve(order, **form).content.decode()
        assert orders.states() == ["unknown"]

    def test_who_may_only_see_may_not(self):
        [order] = unknown()
        page = client_of("Viewers").get(f"{LIST}{order.pk}/change/").content.decode()
        assert 'data-action="resolve-email" disabled' in flat(page)
        assert self.resolve(order, group="Viewers").status_code == 403
        assert orders.states() == ["unknown"]


def test_the_form_says_who_locks_the_row_before_it_is_saved():
    [order] = orders.placed()
    client = client_of(is_superuser=True)
    url = f"{LIST}{order.pk}"
    with session("psql <b>") as holder:
        holder.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE", [order.pk])
        pages = [client.get(f"{url}/change/").text, client.get(f"{url}/lock/").text]
        link = f'<p class="holder">Locked by <a href="/admin/ops/locks/#node-{holder.info.backend_pid}">'
    assert [link in page for page in pages] == [True, True]
    assert "(psql &lt;b&gt;), transaction open for" in pages[1]
    assert client.get(f"{url}/lock/").text == '<p class="quiet">No session locks this row.</p>'


@pytest.mark.parametrize(("user", "id", "status"), [({}, "1", 403), ({"is_superuser": True}, "x", 404)])
def test_the_line_about_the_lock_needs_the_row_and_the_right_to_see_it(user, id, status):
    Order.objects.create(pk=1, customer_email="a@example.test")
    assert client_of(**user).get(f"{LIST}{id}/lock/").status_code == status


def test_an_edit_over_a_row_that_moved_on_is_refused():
    [order] = orders.placed()
    client = client_of(is_superuser=True)
    form = {"customer_email": "ours@example.test", "placed_at_0": "2026-11-20", "placed_at_1": "06:00:00"}
    Order.objects.update(email_reply="noted")
    answer = client.post(f"{LIST}{order.pk}/change/", {**form, "seen_version": order.version})
    assert "Somebody changed this row since you opened it" in answer.content.decode()
    assert client.post(f"{LIST}{order.pk}/change/", {**form, "seen_version": 2}).status_code == 302
    assert Order.objects.get().customer_email == "ours@example.test"
