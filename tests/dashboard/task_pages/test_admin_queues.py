"""The page of the queues: every queue with its numbers, paused and resumed, and how it recovers."""

import pytest

from tasks.models import Intervention, Queue
from tests.html import flat
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
    row = page[page.index('<table class="cards" id="queue-rows">') :]
    assert "?queue=mail" in row
    assert "stale tasks are taken back by themselves" in row


def test_each_button_stands_beside_its_command(operator):
    Queue.objects.create(name="mail", recovery="ask")
    page = operator.get(LIST).text
    for told in ("pause_queue mail", "configure_queue mail --recovery automatic"):
        assert f'<code translate="no">python manage.py {told}</code>' in page


def test_a_queue_is_paused_and_resumed(operator):
    assert "Pause: done for the queue mail." in do(operator, "pause", reason="flood").text
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
    do(operator, "ask")
    assert Queue.objects.get().recovery == "ask"
    do(operator, "automatic")
    assert Queue.objects.get().recovery == "automatic"


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
        assert f'data-action="{action}" disabled aria-describedby="right-{right}">' in page
        assert f'<p class="missing-right" id="right-{right}">You lack the right {right} ' in page
    assert "disabled" not in client_of("Operators", username="olga").get(LIST).text


def test_a_get_is_refused(operator):
    assert operator.get(f"{LIST}do/pause/").status_code == 405
    assert operator.post(f"{LIST}do/empty/").status_code == 404
