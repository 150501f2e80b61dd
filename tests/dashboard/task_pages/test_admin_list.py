"""The list of tasks: its rows, its filter, and its way through very many rows without counting them."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.http import QueryDict
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tasks.models import Attempt, Task
from tasks.operations import search
from tasks.operations.filters import TaskFilter
from tasks.operations.search import Listing, PageCursor, Search, find
from tests.people import client_of
from tests.tasks import handlers, rows

LIST = "/admin/tasks/task/"
LOG_IN = handlers.log_in.module_path

pytestmark = pytest.mark.django_db


def found(query: str = "", *, limit: int = 50, seconds: float = 5.0) -> Listing:
    params = QueryDict(query)
    return find(TaskFilter.from_params(params), PageCursor.from_params(params), limit=limit, seconds=seconds)


def ids(query: str = "", **options: int) -> list[int]:
    return [task.pk for task in found(query, **options).rows]


@pytest.fixture
def viewer():
    return client_of("Viewers")


def test_a_row_shows_status_version_verdict_queue_priority_attempts_and_age(viewer):
    task = rows.failed(queue_name="payouts", priority=7)
    page = viewer.get(LIST)
    [row] = re.findall(r'<table id="task-rows".*?<tbody>(.*?)</tbody>', page.text, re.DOTALL)
    text = " ".join(re.sub(r"<[^>]+>", " ", row).split())
    assert f"#{task.pk} {rows.NOTHING.rpartition('.')[2]}" in text
    assert "FAILED v11 Failed Failed after 5 attempts. payouts 7 5/5 just now" in text


def test_numbers_have_no_thousands_separators(viewer, settings):
    settings.USE_THOUSAND_SEPARATOR = True
    settings.LANGUAGE_CODE = "en"
    task = rows.create(id=1234567, version=4321, status="READY")
    page = viewer.get(LIST, {"id": task.pk}).text + viewer.get(f"{LIST}{task.pk}/").text
    assert "#1234567" in page
    assert "v4321" in page
    assert "1,234,567" not in page
    assert "4,321" not in page


@pytest.mark.parametrize(
    "query",
    [
        "status=FAILED",
        "queue=mail",
        "task=app.other",
        "key=anna",
        "worker=w7f",
        "q=needle",
        "error=declined",
        "id={id}",
    ],
)
def test_each_filter_finds_its_tasks_alone(query):
    rows.ready(kwargs={"text": "hay"})
    task = rows.failed(
        queue_name="mail", task_path="app.other", ordering_key="anna", finished_by="w7f", kwargs={"text": "a Needle"}
    )
    Attempt.objects.create(task=task, number=5, worker_id="w7f", outcome="failed", traceback="card declined")
    assert ids(query.format(id=task.pk)) == [task.pk]


def test_filters_narrow_each_other():
    rows.failed(queue_name="mail")
    both = rows.failed(queue_name="payouts")
    rows.ready(queue_name="payouts")
    assert ids("status=FAILED&queue=payouts") == [both.pk]


def test_the_newest_come_first_and_pages_join_without_a_gap():
    expected = sorted(rows.many(7), reverse=True)
    first = found(limit=3)
    second = found(f"before={first.older}", limit=3)
    third = found(f"before={second.older}", limit=3)
    assert [task.pk for page in (first, second, third) for task in page.rows] == expected
    assert (first.newer, third.older) == (None, None)


def test_a_page_leads_back_to_the_newer_one():
    expected = sorted(rows.many(6), reverse=True)
    second = found(f"before={expected[2]}", limit=3)
    assert ids(f"after={second.newer}", limit=3) == expected[:3]


def test_what_is_redacted_cannot_be_searched_for():
    secret = rows.ready(task_path=LOG_IN, args=["anna"], kwargs={"password": "swordfish"})
    assert ids("q=anna") == [secret.pk]
    assert ids("q=swordfish") == []


def test_a_positional_secret_cannot_be_searched_for():
    rows.ready(task_path=LOG_IN, args=["anna", "swordfish"])
    assert ids("q=swordfish") == []


def test_rows_that_show_nothing_of_what_was_searched_do_not_end_the_search():
    open_one = rows.ready(kwargs={"note": "swordfish"})
    for _ in range(5):
        rows.ready(task_path=LOG_IN, kwargs={"password": "swordfish"})
    assert ids("q=swordfish", limit=2) == [open_one.pk]


def test_a_search_whose_time_is_over_says_how_far_it_looked_and_goes_on_from_there(monkeypatch):
    """Half the ids lie in the first window; the second would take a second for each row."""
    monkeypatch.setattr(search, "FIRST_WINDOW", 5)
    created = sorted(rows.many(10), reverse=True)

    class Slow(TaskFilter):
        def criteria(self, tasks):
            return tasks.extra(
                where=[f"pg_sleep(CASE WHEN tasks_task.id <= {created[5]} THEN 60 ELSE 0 END) IS NOT NULL"]
            )

    page = find(Slow(), PageCursor(), seconds=0.3)
    assert [task.pk for task in page.rows] == created[:5]
    assert page.looked_down_to == page.older == created[4]
    assert ids(f"before={page.older}") == created[5:]


def test_the_page_tells_that_its_search_is_not_complete(viewer, monkeypatch):
    monkeypatch.setattr(search, "SEARCH_SECONDS", 0.0)
    rows.ready()
    page = viewer.get(LIST, {"q": "nowhere"})
    assert "The search ran out of time" in page.text
    assert "Go on from there" in page.text


def test_the_filter_stays_in_the_addresses_of_the_pages(viewer):
    rows.many(51, queue_name="pay outs")
    page = viewer.get(LIST, {"queue": "pay outs", "status": "READY"})
    assert "?status=READY&amp;queue=pay+outs&amp;before=" in page.text


@pytest.mark.parametrize(
    "query", ["id=x", "status=WRONG", "before=-1", "before=1&after=2", "queue=%00", "id=99999999999999999999"]
)
def test_a_filter_that_cannot_be_read_is_a_400_that_says_why(viewer, query):
    page = viewer.get(f"{LIST}?{query}")
    assert page.status_code == 400
    assert 'class="errornote"' in page.text
    assert "Nothing was searched: correct the search." in page.text
    assert "There is no task yet" not in page.text


def test_the_number_of_statements_does_not_grow_with_the_rows(viewer, monkeypatch):
    monkeypatch.setattr(search, "FIRST_WINDOW", 10**9)  # one, however many ids the tests before have used

    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            viewer.get(LIST)
        return len(queries)

    for make in (rows.ready, rows.failed, rows.cancelled, rows.completed):
        make(ordering_key="anna")
    rows.processing("w7f")
    few = statements()
    for number in range(8):
        for make in (rows.ready, rows.failed, rows.cancelled, rows.completed):
            make(ordering_key=f"anna-{number}")
        rows.processing(f"w{number}")
    assert statements() == few


def test_no_statement_of_the_list_counts_or_skips_rows(viewer):
    rows.many(3)
    with CaptureQueriesContext(connection) as queries:
        viewer.get(LIST, {"status": "READY"})
    for query in queries:
        assert "OFFSET" not in query["sql"]
        assert "SELECT COUNT(*) AS" not in query["sql"]


FINISH_MANY = """
INSERT INTO tasks_task (task_path, status, finished_at)
SELECT 'x', 'COMPLETED', '2026-01-01T00:00Z' FROM generate_series(1, 5000)
"""


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("status=READY", "tasks_task_claim"),
        ("status=FAILED", "tasks_task_unsuccessful"),
        ("status=PROCESSING", "tasks_task_claimed"),
    ],
)
def test_rare_states_are_found_by_their_index(query, index):
    rows.ready(), rows.failed(), rows.processing("w7f"), rows.ready(ordering_key="anna")
    with connection.cursor() as cursor:
        cursor.execute(FINISH_MANY)
        cursor.execute("ANALYZE tasks_task")
    matches = TaskFilter.from_params(QueryDict(query)).queryset().filter(pk__gt=0).order_by("-pk")[:51]
    assert index in matches.explain()


def test_every_filter_stays_in_the_box_and_in_the_address(viewer):
    query = "id=7&id=8&status=FAILED&queue=a&queue=b&task=x&task=y&error=e&older_than=1w&q=t&key=k&worker=w"
    page = viewer.get(f"{LIST}?{query}")
    words = "id:7 id:8 status:FAILED queue:a queue:b task:x task:y error:e age:&gt;1w t key:k worker:w"
    assert f'name="search" value="{words}"' in page.text
    assert f'name="filter" value="{query.replace("&", "&amp;")}"' in page.text
    assert f'name="next" value="{LIST}?{query.replace("&", "&amp;")}"' in page.text


def test_a_failed_task_shows_its_exception_and_its_arguments(viewer):
    task = rows.failed(task_path="shop.tasks.pay", args=[1001], kwargs={"password": "swordfish", "note": "a\nb"})
    traceback = "Traceback\nshop.errors.CardDeclined: the provider declines\n"
    Attempt.objects.create(
        task=task, number=5, worker_id="w", outcome="failed", exception_class="shop.errors.CardDeclined",
        traceback=traceback,
    )  # fmt: skip
    page = viewer.get(LIST).text
    assert "CardDeclined: the provider declines</span>" in page
    assert "[1001, note=&quot;a\\nb&quot;, password=" in page
    assert "swordfish" not in page


def test_the_list_costs_a_fixed_number_of_statements(viewer, monkeypatch):
    monkeypatch.setattr(search, "FIRST_WINDOW", 10**9)  # one, however many ids the tests before have used
    for make in (rows.ready, rows.failed, rows.cancelled, rows.completed):
        make(ordering_key="anna")
    rows.processing("w7f")
    with CaptureQueriesContext(connection) as queries:
        viewer.get(LIST, headers={"HX-Request": "true"})
    assert len(queries) <= 38  # the counts of the tabs among them, which all viewers share for seconds


def test_a_search_that_takes_all_its_time_does_not_refresh_itself(viewer, monkeypatch):
    rows.ready()
    assert 'data-live="' in viewer.get(LIST).text
    monkeypatch.setattr(search, "SEARCH_SECONDS", 0.0)
    assert 'data-live="' not in viewer.get(LIST).text


def test_a_search_for_old_tasks_begins_where_they_end(monkeypatch):
    old, young = rows.many(60), rows.many(300)
    Task.objects.filter(pk__in=old).update(created_at=timezone.now() - timedelta(days=8))
    Task.objects.filter(pk__in=young).update(id=F("id") + 100_000)
    places: list[int] = []
    look = Search._window
    monkeypatch.setattr(search, "FIRST_WINDOW", 50)
    monkeypatch.setattr(
        Search, "_window", lambda search, place, *more: places.append(place) or look(search, place, *more)
    )
    assert ids("older_than=7d") == sorted(old, reverse=True)[:50]
    assert max(places) < min(young) + 100_000
    assert ids("older_than=9d") == []
    monkeypatch.setattr(search, "BOUNDS_SECONDS", 0.0)  # their place is not found in time: it begins with the newest
    assert ids("older_than=7d") == sorted(old, reverse=True)[:50]
