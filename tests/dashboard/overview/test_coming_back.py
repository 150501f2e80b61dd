"""What was done from the overview leads back to it, with an answer that links to what was done."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.attention import thresholds
from tasks.models import Attempt, Lock, Queue
from tests.html import answers, hidden
from tests.people import client_of
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
OVERVIEW = "/admin/"
FORM = re.compile(r'<form method="post" action="([^"]+)">(.*?)</form>', re.DOTALL)
FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)"')


@pytest.fixture
def client() -> Client:
    return client_of("Operators", "Lock administrators")


def form_of(client: Client, action: str) -> tuple[str, dict[str, str]]:
    """The address and the fields of the line's button on the overview."""
    lines = client.get(OVERVIEW).text.partition('id="attention-lines"')[2]
    [(url, form)] = [found for found in FORM.findall(lines) if f'data-action="{action}"' in found[1]]
    return url, {name: unescape(value) for name, value in FIELD.findall(form)}


def press(client: Client, action: str) -> tuple[list[str], str]:
    """Press the line's button and confirm: the pages that follow, and the answer with its links."""
    url, fields = form_of(client, action)
    preview = client.post(url, fields).text
    assert f'<a class="back" href="{OVERVIEW}">' in preview.replace("button back", "back")
    page = client.post(url, {**hidden(preview), "reason": "seen"}, follow=True)
    [answer] = re.findall(r'<ul class="messagelist">(.*?)</ul>', page.text, re.DOTALL)
    return [to for to, _status in page.redirect_chain], answer


def test_taking_back(client):
    Queue.objects.create(name="payouts", recovery="ask")
    task = rows.processing(rows.just_died_worker(), queue_name="payouts")
    pages, answer = press(client, "recover")
    assert pages == [OVERVIEW]
    assert f'<a href="/admin/tasks/task/{task.pk}/">#{task.pk}</a>' in answer


def test_running_again(client):
    task = rows.failed(task_path="app.charge")
    Attempt.objects.create(task=task, number=5, worker_id="w", outcome="failed", exception_class="Declined")
    pages, answer = press(client, "requeue")
    assert pages == [OVERVIEW]
    assert re.search(r'Run again: <a href="/admin/tasks/task/runs/\d+/">Bulk run \d+</a> has started', answer)


def test_ending_a_session(client, monkeypatch):
    monkeypatch.setitem(thresholds.USUAL, "idle_seconds", 0)
    with session("psql") as other:
        other.execute("SELECT 1")
        pages, answer = press(client, "terminate-backend")
        pid = other.info.backend_pid
    assert pages == [OVERVIEW]
    assert f'<a href="/admin/ops/audit/?target=backend%3A{pid}">{pid}</a> was signalled' in answer


def test_releasing_a_lock(client):
    ended = timezone.now() - timedelta(hours=1)
    began = ended - timedelta(hours=1)
    Lock.objects.create(name="nightly", owner="gone", fence=7, acquired_at=began, renewed_at=ended, expires_at=ended)
    pages, answer = press(client, "release-lock")
    assert pages == [OVERVIEW]
    assert '<a href="/admin/ops/audit/?target=lock%3Anightly">nightly</a> is free' in answer


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.example/admin/", "//evil.example/admin/ops/", "/admin/logout/", "/admin/\n", "javascript:1", ""],
)
def test_it_leads_nowhere_else(client, wanted):
    rows.processing(rows.dead_worker())
    answer = client.post("/admin/ops/stale/take-back/", {"worker": "w-dead", "confirmed": "1", "next": wanted})
    assert (answer.status_code, answer["Location"]) == (302, "/admin/ops/stale/")


def test_the_answers_are_escaped(client):
    hostile = "<b>mail</b>"
    page = client.post("/admin/tasks/queue/do/pause/", {"queue": hostile, "next": OVERVIEW}, follow=True)
    assert page.redirect_chain[-1][0] == OVERVIEW
    assert hostile not in page.text
    assert hostile in answers(page.text)
