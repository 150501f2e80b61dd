"""The page *Limits*: which keys it shows and what of each, searching and paging, and changing them."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard import limits
from tasks.models import Bucket, Intervention, Limit, Queue, Task
from tasks.operations import set_limit, set_queue_limit
from tasks.support.audit import Who
from tests.html import flat
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db
PAGE, CHANGE, QUEUES = "/admin/ops/limits/", "/admin/ops/limits/change/", "/admin/tasks/queue/"
ANNA = Who("anna", "page")
TAG = re.compile("<[^>]*>")
NONE = "\u2013"


@pytest.fixture
def viewer():
    return client_of("Viewers")


@pytest.fixture
def operator():
    return client_of("Operators", username="olga")


def run(key: str, number: int, most: int | None = None, **columns) -> list[Task]:
    """So many running tasks of a key, the first of them for the longest."""
    at = timezone.now()
    return [
        rows.processing(
            "w7f", concurrency_key=key, concurrency_limit=most, slot=slot,
            started_at=at - timedelta(minutes=number - slot + 1), **columns,
        )
        for slot in range(1, number + 1)
    ]  # fmt: skip


def line(client, key: str, query: str = "") -> dict[str, str]:
    """The cells of a key's line by heading, without tags, and its text under `all`."""
    found = re.findall(r'<tr id="limit-[0-9a-f]{12}">(.*?)</tr>', flat(client.get(PAGE + query).text))
    [row] = [row for row in found if f'title="{key}"' in row]
    cells = re.findall(r'<td [^>]*data-label="([^"]+)"[^>]*>(.*?)</td>', row)
    return {"all": row, **{label: flat(TAG.sub(" ", cell)).strip() for label, cell in cells}}


def shown(client, query: str = "") -> list[str]:
    return re.findall(r'<th scope="row" class="one-line" title="([^"]+)">', client.get(PAGE + query).text)


def test_who_holds_the_slots_of_a_key_since_when_and_who_waits(viewer):
    first, second, third = run("bank", 3, most=3)
    rows.many(4, concurrency_key="bank", concurrency_limit=3)
    rows.ready(concurrency_key="bank", concurrency_limit=3, run_after=timezone.now() + timedelta(hours=1))
    seen = line(viewer, "bank")
    assert (seen["Limit"], seen["Running"], seen["Waiting"], seen["Setting"]) == ("3", "3", "4", "as declared")
    assert re.match(
        rf"#{first.pk} nothing 3 min ago w7f and 2 more #{second.pk} .* #{third.pk} ", seen["Slots held by"]
    )
    assert f'href="/admin/tasks/task/{first.pk}/"' in seen["all"]
    assert "is-full" in seen["all"]
    assert "/admin/ops/workers/?worker=w7f#" in seen["all"]
    assert 'href="/admin/tasks/task/?status=READY&amp;limit=bank"' in seen["all"]


def test_what_an_operator_set_goes_before_what_is_declared(viewer):
    run("bank", 1, most=3)
    set_limit("bank", ANNA, max_running=7)
    seen = line(viewer, "bank")
    assert (seen["Limit"], seen["Setting"]) == ("7", "set by an operator")
    assert "is-full" not in seen["all"]


def test_a_key_without_any_number_is_a_limit_of_one(viewer):
    run("bank", 1)
    assert line(viewer, "bank")["Limit"] == "1"


def test_a_rate_and_when_it_allows_the_next_start(viewer):
    rated = {"rate_key": "bank", "rate": 100, "period_seconds": 60}
    rows.many(1, concurrency_key="bank", **rated)
    seen = line(viewer, "bank")
    assert (seen["Limit"], seen["Rate"], seen["Next start"]) == (NONE, "100/m", "now")
    Bucket.objects.create(name="key:bank", next_at=timezone.now() + timedelta(seconds=90))
    assert re.fullmatch(r"in (8\d|90) s", line(viewer, "bank")["Next start"])
    set_limit("bank", ANNA, paused=True)
    seen = line(viewer, "bank")
    assert seen["Next start"] == NONE
    assert re.match("Paused by anna ", seen["Setting"])


def test_a_rate_that_several_keys_share_is_named(viewer):
    rows.many(1, concurrency_key="customer-7", rate_key="bank", rate=5, period_seconds=1)
    set_limit("bank", ANNA, rate="9/h")
    assert line(viewer, "customer-7")["Rate"] == "9/h of bank"
    assert 'href="/admin/ops/limits/?key=bank"' in line(viewer, "customer-7")["all"]


def test_keys_that_are_limited_or_in_use_are_listed_in_order_and_others_are_not(viewer):
    rows.ready(concurrency_key="waiting")
    run("running", 1)
    set_limit("idle", ANNA, max_running=2)
    set_limit("freed", ANNA, max_running=2)
    set_limit("freed", ANNA, max_running=None)
    rows.completed(concurrency_key="done")
    assert shown(viewer) == ["idle", "running", "waiting"]
    assert shown(viewer, "?key=done") == ["done"]
    assert shown(viewer, "?q=IN") == ["running", "waiting"]
    assert "No key with a limit or in use contains this text." in viewer.get(f"{PAGE}?q=nothing").text
    assert viewer.get(f"{PAGE}?q=%00").status_code == 400


def test_more_keys_than_a_page_shows_are_on_the_next_page(viewer):
    Limit.objects.bulk_create(Limit(key=f"key-{number:03}", max_running=1) for number in range(limits.SHOWN + 3))
    first = viewer.get(PAGE).text
    [onward] = re.findall(r'<a href="([^"]+)" rel="next">', first)
    assert shown(viewer)[-1] == f"key-{limits.SHOWN - 1:03}"
    assert shown(viewer, onward.removeprefix(PAGE).replace("&amp;", "&")) == [
        f"key-{limits.SHOWN + number:03}" for number in range(3)
    ]


@pytest.mark.django_db(transaction=True)
def test_a_search_that_takes_too_long_shows_the_key_of_exactly_this_name(viewer, monkeypatch):
    rows.ready(concurrency_key="bank")
    slow = "SELECT pg_sleep(60)::text AS key WHERE %(text)s || %(after)s <> %(most)s::text"
    monkeypatch.setattr(limits, "KEYS", slow)
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '1s'")
        try:
            page = viewer.get(f"{PAGE}?q=bank").text
        finally:
            cursor.execute("RESET statement_timeout")
    assert "The search took too long. Below is the key of exactly this name." in page
    assert 'title="bank"' in page


def test_waiting_tasks_are_counted_up_to_a_cap(viewer, monkeypatch):
    monkeypatch.setattr(limits, "CAP", 10)
    rows.many(12, concurrency_key="bank")
    assert line(viewer, "bank")["Waiting"] == "10+"


def test_the_page_asks_as_many_statements_of_many_keys_as_of_one(viewer):
    def asked() -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            viewer.get(PAGE, headers={"HX-Request": "true"})
        return len(queries)

    run("bank", 2, most=3)
    viewer.get(PAGE)
    few = asked()
    for number in range(20):
        run(f"customer-{number}", 2, most=2)
    assert asked() == few


def test_an_operator_pauses_resumes_and_changes_a_key(operator):
    rows.ready(concurrency_key="bank")
    here = f"{PAGE}?q=bank"
    answer = operator.post(f"{PAGE}pause/", {"key": "bank", "next": here})
    assert (answer.status_code, answer["Location"]) == (302, here)
    assert Limit.objects.get().paused_by == "olga"
    operator.post(f"{PAGE}resume/", {"key": "bank"})
    form = operator.post(CHANGE, {"key": "bank", "next": here}).text
    assert "python manage.py configure_limit bank --max-running none --rate none" in form
    values = {"key": "bank", "next": here, "confirmed": "1", "max_running": "4", "rate": "7/s", "reason": "quota"}
    assert operator.post(CHANGE, values)["Location"] == here
    assert Limit.objects.values_list("max_running", "rate", "period_seconds", "paused").get() == (4, 7, 1, False)
    assert list(Intervention.objects.order_by("pk").values_list("actor", "source", "action", "target", "reason")) == [
        ("olga", "page", "pause", "limit:bank", ""), ("olga", "page", "resume", "limit:bank", ""),
        ("olga", "page", "limit max_running=4 rate=7/s", "limit:bank", "quota"),
    ]  # fmt: skip
    form = flat(operator.post(CHANGE, {"key": "bank"}).text)
    assert 'name="max_running" value="4"' in form
    assert 'name="rate" value="7/s"' in form
    operator.post(CHANGE, {"key": "bank", "confirmed": "1", "max_running": "", "rate": ""})
    assert Limit.objects.values_list("max_running", "rate").get() == (None, None)
    assert "The key bank was like that already." in operator.post(f"{PAGE}resume/", {"key": "bank"}, follow=True).text


@pytest.mark.parametrize(("field", "value"), [("max_running", "0"), ("rate", "100")])
def test_what_cannot_be_read_is_shown_again_and_changes_nothing(operator, field, value):
    answer = operator.post(CHANGE, {"key": "bank", "confirmed": "1", "max_running": "", "rate": "", field: value})
    assert answer.status_code == 400
    assert f'name="{field}" value="{value}"' in flat(answer.text)
    assert re.search("errorlist", answer.text)
    assert not Limit.objects.exists()


def test_a_viewer_may_not_and_is_told_the_right(viewer):
    set_limit("bank", ANNA, max_running=2)
    for address, post in ((f"{PAGE}pause/", {}), (CHANGE, {"confirmed": "1", "max_running": "9"})):
        answer = viewer.post(address, {"key": "bank", **post})
        assert (answer.status_code, "tasks.configure_limit" in answer.text) == (403, True)
    seen = line(viewer, "bank")["all"]
    assert len(re.findall(r'<button type="submit" [^>]*disabled aria-describedby="right-limit">', seen)) == 2
    assert 'id="right-limit">You lack the right tasks.configure_limit ' in viewer.get(PAGE).text
    assert Limit.objects.get().max_running == 2
    assert client_of(username="nobody").get(PAGE).status_code == 403


def test_the_queues_show_their_limits_and_change_them_there(operator):
    set_queue_limit("mail", ANNA, max_running=5, rate="100/h")
    page = flat(operator.get(QUEUES).text)
    assert '<span class="limit">Limit: 5 at once, 100/h</span>' in page
    assert (
        'name="queue" value="mail" data-action="change-limit" data-dialog formaction="/admin/ops/limits/change/"'
        in page
    )
    assert 'name="max_running" value="5"' in flat(operator.post(CHANGE, {"queue": "mail"}).text)
    answer = operator.post(CHANGE, {"queue": "mail", "confirmed": "1", "max_running": "6", "rate": ""})
    assert answer["Location"] == QUEUES
    assert Queue.objects.values_list("max_running", "rate").get() == (6, None)
    viewer = client_of("Viewers")
    assert "tasks.configure_queue" in viewer.post(CHANGE, {"queue": "mail"}).text
    assert 'disabled aria-describedby="right-tasks.configure_queue">Limit…' in flat(viewer.get(QUEUES).text)


def test_the_page_of_a_task_leads_to_its_key(viewer):
    run("bank & co", 1)
    waiting = rows.ready(concurrency_key="bank & co")
    page = flat(viewer.get(f"/admin/tasks/task/{waiting.pk}/").text)
    assert page.count('href="/admin/ops/limits/?key=bank+%26+co"') == 2, "as its key, and in its verdict"
    assert "Waiting for a slot" in page
    assert shown(viewer, "?key=bank+%26+co") == ["bank &amp; co"]
