"""The search box, the tabs and the saved views of the list of tasks."""

import html
import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboard.models import SavedView
from dashboard.task_pages import tabs
from dashboard.task_pages.search import WORDS, parse, written
from tasks.operations.filters import InvalidFilter, TaskFilter
from tasks.operations.search import Listing, PageCursor, find
from tasks.panels import Snapshot
from tests.html import tabs_of
from tests.people import client_of
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db
LIST = "/admin/tasks/task/"
texts = st.text(min_size=1, max_size=20).filter(lambda text: text.strip() and "\0" not in text and text.isprintable())


@pytest.fixture
def viewer():
    return client_of("Viewers")


def test_words_are_a_filter():
    chosen = parse('queue:billing queue:"pay outs" status:failed error:CardDeclined age:>1h task:shop.pay 1001 again')
    assert chosen == TaskFilter(
        queue_names=("billing", "pay outs"),
        statuses=("FAILED",),
        error="CardDeclined",
        older_than=timedelta(hours=1),
        task_paths=("shop.pay",),
        text="1001 again",
    )


@pytest.mark.parametrize(("state", "status"), [("running", "PROCESSING"), ("Done", "COMPLETED"), ("READY", "READY")])
def test_states_are_called_what_people_call_them(state, status):
    assert parse(f"status:{state}").statuses == (status,)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # on a machine busy with other tests
@given(st.builds(TaskFilter, text=texts, error=texts, ordering_key=texts, queue_names=st.tuples(texts)))
def test_what_is_written_is_read_back(chosen):
    assert parse(written(chosen)) == chosen


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("foo:bar", "There is no word foo. There are: status, queue,"),
        ("status:gone", "is not a status"),
        ("age:<1h", "write age:>1h"),
        ("age:soon", "is not a duration"),
        ("error:a error:b", "The word error stands twice"),
        ('queue:"mail', "has no partner"),
        ("queue:", "has no value"),
        ("due:soon", "choose now or later"),
        ("id:x", "is not the id of a task"),
        ("x" * 3000, "shorten it"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason_and_stays_in_the_box(viewer, typed, said):
    with pytest.raises(InvalidFilter):
        parse(typed)
    page = viewer.get(LIST, {"search": typed})
    assert page.status_code == 400
    assert said in html.unescape(page.text)
    assert f'value="{html.escape(typed)}"' in page.text
    assert "Nothing was searched" in page.text


def test_a_search_leads_to_the_address_of_its_filter(viewer):
    page = viewer.get(LIST, {"search": "queue:mail status:failed"})
    assert page.status_code == 302
    assert page.url == f"{LIST}?status=FAILED&queue=mail"
    assert 'value="status:FAILED queue:mail"' in viewer.get(page.url).text


def test_every_word_is_a_parameter_of_the_filter():
    examples = " ".join(f"{name}:{word.example}" for name, word in WORDS.items())
    assert parse(examples).as_query().count("=") == len(WORDS)


def test_each_tab_counts_its_state(viewer):
    rows.many(3)
    rows.ready(ordering_key="anna")
    rows.ready(run_after="2099-01-01T00:00Z")
    rows.failed(), rows.completed(), rows.completed(), rows.cancelled()
    rows.processing(rows.dead_worker())
    assert tabs_of(viewer.get(LIST).text) == {
        "All": "10", "Ready": "4", "Running": "1", "Scheduled": "1", "Stuck": "1", "Failed": "1", "Done": "2",
        "Cancelled": "1", "Archived": "",
    }  # fmt: skip


def test_each_tab_lists_what_it_counts(viewer):
    due, later = rows.ready(), rows.ready(run_after="2099-01-01T00:00Z")
    page = viewer.get(LIST, {"status": "READY", "due": "later"}).text
    assert f'id="task-{later.pk}"' in page
    assert f'id="task-{due.pk}"' not in page


def test_tabs_keep_the_other_conditions_and_count_nothing_then(viewer):
    page = viewer.get(LIST, {"queue": "mail", "status": "READY"}).text
    assert f'href="{LIST}?status=FAILED&amp;queue=mail"' in page
    assert set(tabs_of(page).values()) == {""}


def test_counts_stop_and_all_is_estimated(viewer, monkeypatch):
    monkeypatch.setattr(tabs, "CAP", 3)
    rows.many(5)
    found = tabs_of(viewer.get(LIST).text)
    assert (found["Ready"], found["Scheduled"]) == ("3+", "0+")
    assert found["All"].startswith("≈ ")


@pytest.mark.django_db(transaction=True)
def test_a_locked_table_costs_the_numbers_alone():
    with session() as other:
        other.execute("LOCK TABLE tasks_task")
        assert tabs.known_numbers(Snapshot()) is None


def test_the_oldest_come_first_if_asked(viewer):
    ids = rows.many(3)
    page = viewer.get(LIST, {"sort": "id"}).text
    assert re.findall(r'id="task-(\d+)"', page) == [str(number) for number in ids]
    assert 'aria-sort="ascending"' in page
    assert viewer.get(LIST, {"sort": "args"}).status_code == 400


def test_pages_of_the_oldest_join_without_a_gap():
    expected = rows.many(7)

    def page(**position: int) -> Listing:
        return find(TaskFilter(), PageCursor(**position, is_ascending=True), limit=3)

    first = page()
    second = page(after=first.newer)
    third = page(after=second.newer)
    assert [task.pk for one in (first, second, third) for task in one.rows] == expected
    assert (first.older, third.newer) == (None, None)
    assert [task.pk for task in page(before=second.older).rows] == expected[:3]


def test_a_view_is_kept_for_its_person_alone(viewer):
    saved = viewer.post(f"{LIST}views/save/", {"name": "declined", "filter": "status=FAILED&error=Card", "next": LIST})
    assert saved.url == f"{LIST}?status=FAILED&error=Card"
    assert "declined" in viewer.get(LIST).text
    assert "declined" not in client_of("Operators", username="boris").get(LIST).text


@pytest.mark.parametrize(
    ("name", "chosen", "said"),
    [
        ("", "status=FAILED", "a view needs a name"),
        ("x" * 61, "status=FAILED", "a view needs a name"),
        ("mine", "", "there is no search to keep"),
        ("mine", "status=GONE", "is not a status"),
        ("taken", "status=READY", "you have a view taken already"),
    ],
)
def test_a_view_that_cannot_be_kept_is_refused(viewer, name, chosen, said):
    viewer.get(LIST)
    SavedView.objects.create(user=User.objects.get(), name="taken", query="status=FAILED")
    answer = viewer.post(f"{LIST}views/save/", {"name": name, "filter": chosen, "next": LIST}, follow=True)
    assert said in html.unescape(answer.text)
    assert SavedView.objects.count() == 1


def test_a_view_is_deleted_by_its_owner_alone(viewer):
    mine = SavedView.objects.create(user=User.objects.get(), name="mine", query="status=FAILED")
    client_of("Viewers", username="boris").post(f"{LIST}views/delete/", {"view": mine.pk})
    assert SavedView.objects.count() == 1
    viewer.post(f"{LIST}views/delete/", {"view": mine.pk})
    assert SavedView.objects.count() == 0
