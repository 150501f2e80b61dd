"""The page of the queues: every queue with its numbers, paused and resumed, and how it recovers."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from tasks.diagnosis import stats
from tasks.models import Intervention, Queue, Throughput
from tests.html import answers, flat, hidden
from tests.people import client_of
from tests.tasks import rows

LIST = "/admin/tasks/queue/"

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return client_of("Operators")


def do(client, action: str, queue: str = "mail", **fields: str):
    return client.post(f"{LIST}do/{action}/", {"queue": queue, **fields}, follow=True)


def test_a_queue_without_a_setting_is_shown_with_its_numbers(operator):
    rows.ready(queue_name="mail")
    rows.processing("w7f", queue_name="mail")
    page = operator.get(LIST).text
    row = page[page.index('id="queue-rows"') :]
    assert "?queue=mail" in row
    assert "Recovery: automatic" in row


def test_each_button_stands_beside_its_command(operator):
    Queue.objects.create(name="mail", recovery="ask")
    page = operator.get(LIST).text
    for told in ("pause_queue mail", "configure_queue mail --recovery automatic"):
        assert f'data-copy="python manage.py {told}"' in page


def test_an_objective_is_shown_with_its_command(operator):
    Queue.objects.create(name="mail", objective=timedelta(minutes=5), max_running=2)
    page = flat(operator.get(LIST).text)
    assert "· Objective: 5 min" in page
    assert 'data-copy="python manage.py configure_queue mail --objective 5m"' in page


def test_a_queue_is_paused_and_resumed(operator):
    assert "Pause: done for the queue mail." in answers(do(operator, "pause", reason="flood").text)
    queue = Queue.objects.get()
    assert (queue.paused, queue.paused_by) == (True, "anna")
    page = do(operator, "resume").text
    assert "Resume: done" in page
    assert 'data-action="pause"' in page
    assert list(Intervention.objects.order_by("id").values_list("action", "reason")) == [
        ("pause", "flood"),
        ("resume", ""),
    ]


def test_pausing_twice_is_told_and_not_recorded(operator):
    do(operator, "pause")
    assert "was like that already" in do(operator, "pause").text
    assert Intervention.objects.count() == 1


def test_a_queue_is_told_to_ask_a_person_and_back(operator):
    do(operator, "ask", confirmed="1", reason="money")
    assert Queue.objects.get().recovery == "ask"
    do(operator, "automatic", confirmed="1")
    assert Queue.objects.get().recovery == "automatic"
    assert Intervention.objects.order_by("id")[0].reason == "money"


@pytest.mark.parametrize("action", ["ask", "automatic"])
def test_its_recovery_changes_after_a_question_that_shows_the_command(operator, action):
    Queue.objects.create(name="mail", recovery="automatic" if action == "ask" else "ask")
    page = do(operator, action).text
    assert f"python manage.py configure_queue mail --recovery {action}" in page
    assert hidden(page)["confirmed"] == "1"
    assert not Intervention.objects.exists()


def test_a_paused_queue_says_by_whom_and_since_when(operator):
    do(operator, "pause")
    row = flat(operator.get(LIST).text)
    assert ">Paused</span>by anna<span data-volatile><time datetime=" in row


def test_the_page_refreshes_its_table(operator):
    rows.ready(queue_name="mail")
    part = operator.get(LIST, headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert 'id="queue-rows"' in part


def test_a_queue_has_its_last_hour_as_bars_and_as_a_number(operator):
    now = timezone.now().replace(second=0, microsecond=0)
    for minutes, number in ((-90, 1), (0, 1000), (12, 500), (59, 7), (61, 9)):
        at = now - timedelta(minutes=minutes)
        Throughput.objects.create(minute=at, queue_name="mail", shard=0, completed=number)
    page = operator.get(LIST).text
    assert 'role="img" aria-label="1,508 done in the last hour" viewBox="0 0 48 20"' in page
    assert stats.collect().completed["mail"] == [7, *[0] * 8, 500, 0, 1001]


def test_what_was_pressed_on_the_overview_leads_back_to_it(operator):
    answer = operator.post(f"{LIST}do/pause/", {"queue": "mail", "next": "/admin/"})
    assert (answer.status_code, answer["Location"]) == (302, "/admin/")


def test_a_queue_must_be_named(operator):
    assert "Name the queue." in do(operator, "pause", queue=" ").text
    assert not Queue.objects.exists()


@pytest.mark.parametrize(
    ("action", "right"), [("pause", "pause_queue"), ("resume", "pause_queue"), ("ask", "configure_queue")]
)
def test_a_viewer_may_not(action, right):
    viewer = client_of("Viewers")
    page = do(viewer, action)
    assert page.status_code == 403
    assert f"tasks.{right}" in page.text
    assert not Queue.objects.exists()
    assert f"tasks.{right}" in viewer.get(LIST).text


def test_a_viewers_buttons_are_disabled_and_name_the_right():
    """They were enabled and ended in a page without the way back."""
    Queue.objects.create(name="mail")
    page = flat(client_of("Viewers").get(LIST).text)
    for action, right in (("pause", "tasks.pause_queue"), ("ask", "tasks.configure_queue")):
        button = (
            rf'data-action="{action}" formaction="[^"]+"(?: data-dialog)? disabled aria-describedby="right-{right}">'
        )
        assert re.search(button, page)
        assert f'<p class="missing-right" id="right-{right}">You lack the right {right} ' in page
    assert "disabled" not in client_of("Operators", username="olga").get(LIST).text


def test_a_get_is_refused(operator):
    assert operator.get(f"{LIST}do/pause/").status_code == 405
    assert operator.post(f"{LIST}do/empty/").status_code == 404
