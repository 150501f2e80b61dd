"""The page of workers: who lives, what each is on, asking one to stop, releasing what a hanging one has not begun."""

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import urlsplit

import psutil
import pytest
from django.db import connection
from django.utils import timezone
from django.utils.html import escape

from dashboard import links
from tasks.models import Intervention, Task, Worker
from tests.html import answers
from tests.people import client_of
from tests.sessions import session, wait_until_blocked
from tests.tasks import rows
from tests.tasks.claiming import claim, complete, ids

pytestmark = pytest.mark.django_db(transaction=True)
WORKERS, STOP, RELEASE = "/admin/ops/workers/", "/admin/ops/workers/stop/", "/admin/ops/workers/release/"


@pytest.fixture
def operator():
    return client_of("Operators")


@pytest.fixture
def worker():
    with rows.living_worker("w1", strategy="optimistic", queues=["mail", "pay"]) as worker_id:
        yield worker_id


@pytest.fixture
def hanging(worker):
    """The worker has been on the first of three tasks for ten minutes; the claims."""
    for _ in range(3):
        rows.ready(queue_name="mail")
    claims = claim(worker_id=worker)
    Worker.objects.update(current_task_id=claims[0].id, current_since=timezone.now() - timedelta(minutes=10))
    return claims


def lines(client) -> dict[str, object]:
    return {line.worker.id: line for line in client.get(WORKERS).context["board"].lines}


def versions(claims) -> str:
    return " ".join(f"{one.id}:{one.version}" for one in claims)


def test_a_worker_is_shown_with_what_it_is_on_and_has_claimed_ahead(operator, hanging):
    page = operator.get(WORKERS)
    for text in (
        "w1",
        "host",
        "optimistic",
        "mail",
        "pay",
        "Alive",
        "heard",
        f"#{hanging[0].id}",
        "10 min</span>",
    ):
        assert text in page.text
    line = lines(operator)["w1"]
    assert (line.held, line.unstarted, line.hangs, line.session.waits) == (3, 2, True, False)


def test_the_memory_of_a_process_of_this_host_is_shown(operator, worker):
    """Not that of a later process with its pid, or of another host's."""
    here, began = socket.gethostname(), psutil.Process().create_time()
    started_at = datetime.fromtimestamp(began, tz=UTC)
    Worker.objects.update(hostname=here, pid=os.getpid(), started_at=started_at)
    assert lines(operator)["w1"].memory_bytes > 10_000_000
    assert re.search(rf"MB ·\s+{os.getpid()} · <span translate=\"no\">{here}<", operator.get(WORKERS).text)
    Worker.objects.update(started_at=started_at + timedelta(minutes=2))
    assert lines(operator)["w1"].memory_bytes is None
    Worker.objects.update(started_at=started_at, hostname="elsewhere")
    assert lines(operator)["w1"].memory_bytes is None


def test_what_it_has_done_is_drawn_minute_by_minute(operator, worker):
    rows.ready(queue_name="mail")
    [claimed] = claim(worker_id=worker)
    complete(connection, worker, claimed)
    page = operator.get(WORKERS).text
    assert re.search(r'aria-label="Done in each of the last 20 minutes; now [\d.]+ a minute" viewBox="0 0 80 20"', page)
    assert re.search(r'<path d="M78 20V0\.0"/>', page)


def test_a_worker_that_waits_for_a_lock_says_so(operator, hanging):
    with session("rowlock:worker:w1") as waiter, session() as holder:
        holder.execute("LOCK TABLE orders_entry")
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(waiter.execute, "LOCK TABLE orders_entry")
            wait_until_blocked(waiter.info.backend_pid)
            page = operator.get(WORKERS).text
            holder.rollback()
            waits.result()
    assert "waits for a lock:" in page


def test_a_task_that_it_has_lost_is_not_what_it_is_on(operator, hanging):
    Task.objects.filter(pk=hanging[0].id).update(status="READY", claimed_by=None)
    line = lines(operator)["w1"]
    assert (line.current, line.unstarted, line.hangs) == (None, 2, False)


def test_the_dead_and_the_unknown_come_first_and_lead_to_what_is_stuck(operator, worker):
    rows.processing("unknown"), rows.processing(rows.dead_worker("w9"))
    assert list(lines(operator)) == ["unknown", "w9", "w1"]
    page = operator.get(WORKERS)
    assert "registered nowhere" in page.text
    assert page.text.count("Take back…") == 2
    assert page.text.count('formaction="/admin/ops/stale/take-back/"') == 2
    assert f'href="/admin/ops/stale/#worker-{links.element_id("w9")}"' in page.text
    assert page.text.count('data-action="stop-worker"') == 1


def test_without_a_live_worker_it_says_how_to_start_one(operator):
    rows.dead_worker()
    page = operator.get(WORKERS)
    assert "No worker is alive" in page.text
    assert "python manage.py run_worker" in page.text


def test_a_worker_is_asked_to_stop_after_a_preview(operator, worker):
    preview = operator.post(STOP, {"worker": worker})
    assert "finishes what it runs" in preview.text
    assert "stop_worker w1" in preview.text
    assert Worker.objects.get().stop_requested_at is None
    page = operator.post(STOP, {"worker": worker, "confirmed": "1", "reason": "deploy"}, follow=True)
    assert "Worker w1 is asked to finish what it runs and to stop." in answers(page.text)
    assert "Stopping" in page.text
    entry = Intervention.objects.get()
    assert (entry.actor, entry.source, entry.action, entry.target, entry.reason) == (
        "anna", "page", "stop", "worker:w1", "deploy",
    )  # fmt: skip


def test_a_second_click_asks_nothing_more(operator, worker):
    form = {"worker": worker, "confirmed": "1"}
    operator.post(STOP, form)
    assert "nothing changed" in operator.post(STOP, form, follow=True).text
    assert Intervention.objects.count() == 1


def test_a_dead_worker_cannot_be_asked(operator):
    rows.processing(rows.just_died_worker("w9"))
    Worker.objects.update(missing_since=timezone.now() - timedelta(minutes=1))
    assert operator.post(STOP, {"worker": "w9"}).status_code == 409
    assert "dead" in operator.post(STOP, {"worker": "w9", "confirmed": "1"}, follow=True).text
    assert operator.post(STOP, {"worker": "nobody"}).status_code == 409


def test_a_worker_whose_row_is_locked_is_not_waited_for_long(operator, worker):
    with session() as other:
        other.execute("SELECT FROM tasks_worker WHERE id = 'w1' FOR UPDATE")
        page = operator.post(STOP, {"worker": worker, "confirmed": "1"}, follow=True)
        pid = other.info.backend_pid
    assert "busy" in page.text
    assert f"pid {pid} · rowlock:test · " in page.text
    assert Worker.objects.get().stop_requested_at is None


def test_the_unstarted_are_released_as_they_were_seen(operator, hanging):
    preview = operator.post(RELEASE, {"worker": "w1"})
    assert preview.context["versions"] == versions(hanging[1:])
    assert "what it reports is refused" in preview.text
    assert "release_unstarted w1" in preview.text
    Task.objects.filter(pk=hanging[1].id).update(priority=3)
    form = {"worker": "w1", "confirmed": "1", "versions": preview.context["versions"], "reason": "hangs"}
    page = operator.post(RELEASE, form, follow=True)
    assert "1 task was released." in page.text
    assert f"#{hanging[1].id}</a> not changed: it changed since you looked" in page.text
    assert list(Task.objects.order_by("pk").values_list("status", flat=True)) == ["PROCESSING", "PROCESSING", "READY"]
    assert Intervention.objects.get().target == f"task:{hanging[2].id}"


def test_one_whose_supervisor_is_silent_is_offered_and_what_stays_is_a_guess(operator, hanging):
    offer = 'data-action="release-unstarted"'
    Worker.objects.update(current_task_id=None, current_since=None, lease_seconds=30)
    Task.objects.update(started_at=timezone.now() - timedelta(minutes=1))
    assert offer not in operator.get(WORKERS).text
    Worker.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=16))
    assert offer in operator.get(WORKERS).text
    preview = operator.post(RELEASE, {"worker": "w1"})
    assert "its supervisor is silent" in preview.text
    assert (preview.context["current"].id, len(preview.context["tasks"])) == (hanging[0].id, 2)


def test_releasing_twice_does_one_thing(operator, hanging):
    form = {"worker": "w1", "confirmed": "1", "versions": versions(hanging[1:])}
    operator.post(RELEASE, form), operator.post(RELEASE, form)
    assert Intervention.objects.count() == 2
    assert ids(claim(worker_id="w2")) == ids(hanging)[1:]


def test_a_worker_on_its_way_keeps_what_it_has(operator, hanging):
    Worker.objects.update(current_since=timezone.now())
    assert 'data-action="release-unstarted"' not in operator.get(WORKERS).text
    page = operator.post(RELEASE, {"worker": "w1"}, follow=True)
    assert "Nothing was released" in page.text


@pytest.mark.parametrize("url", [STOP, RELEASE])
@pytest.mark.parametrize(
    "form",
    [{}, {"worker": ""}, {"worker": "x" * 300}, {"worker": "a\0"}, {"worker": "w", "versions": "1"},
     {"worker": "w", "versions": "1:x"}, {"worker": "w", "versions": f"{2**63}:1"},
     {"worker": "w", "versions": f"1:{2**31}"}],
)  # fmt: skip
def test_a_form_that_no_page_made_is_refused(operator, url, form):
    assert operator.post(url, {**form, "confirmed": "1"}).status_code == 400


def test_a_viewer_sees_which_rights_are_missing(hanging):
    viewer = client_of("Viewers")
    page = viewer.get(WORKERS)
    assert "You lack the right tasks.stop_worker" in page.text
    assert "You lack the right tasks.requeue_task" in page.text
    assert page.text.count("disabled") == 2
    for url in (STOP, RELEASE):
        assert viewer.post(url, {"worker": "w1", "confirmed": "1"}).status_code == 403


def test_those_that_have_ended_are_one_link_away(operator, worker):
    rows.dead_worker("w9")
    Worker.objects.filter(pk="w9").update(stopped_at=timezone.now(), stop_reason="deploy")
    page = operator.get(WORKERS)
    assert list(lines(operator)) == ["w1"]
    [href] = re.findall(r'href="([^"]+)">Workers that have ended</a>', page.text)
    assert "deploy" in operator.get(href).text


def test_a_link_to_a_worker_leads_to_its_row(operator, worker):
    task = rows.ready(queue_name="mail")
    claim(worker_id=worker)
    [href] = re.findall(r'<a href="([^"]+)">worker w1</a>', operator.get(f"/admin/tasks/task/{task.pk}/").text)
    target = urlsplit(unescape(href))
    assert target.path == WORKERS
    page = operator.get(f"{target.path}?{target.query}")
    assert f'<tr id="{target.fragment}"' in page.text
    assert page.text.count('class="is-asked"') == 1
    assert "is-asked" not in operator.get(WORKERS).text


@pytest.mark.parametrize(
    ("reason", "word"), [("stopped", "Has ended"), ("convicted", "Worker dead")], ids=["ended", "convicted"]
)
def test_a_worker_that_has_ended_is_found_too(operator, worker, reason, word):
    rows.dead_worker("w/9 &")
    Worker.objects.filter(pk="w/9 &").update(stopped_at=timezone.now() - timedelta(minutes=9), stop_reason=reason)
    url = links.worker("w/9 &").partition("#")[0]
    for headers in ({}, {"HX-Request": "true"}):
        page = operator.get(url, headers=headers)
        row = page.text.partition('class="is-asked"')[2].partition("</tr>")[0]
        assert "w/9 &amp;" in row
        assert f"{word}</span>" in row
        assert reason in row
        assert "9 min ago" in row
        assert "data-attention" not in row
    assert f'hx-get="{escape(url)}"' in operator.get(url).text


def test_a_worker_that_nobody_knows_is_registered_nowhere(operator, worker):
    page = operator.get(links.worker("w8").partition("#")[0])
    assert "registered nowhere" in page.text.partition('class="is-asked"')[2].partition("</tr>")[0]


def test_the_queries_do_not_grow_with_the_workers(operator, worker, django_assert_max_num_queries):
    for number in range(10):
        rows.processing(rows.dead_worker(f"w-{number}"))
    with django_assert_max_num_queries(27):
        operator.get(WORKERS)


def test_hostile_names_are_shown_as_text(operator):
    hostile = "<script>alert(1)</script>"
    Worker.objects.create(id=hostile, hostname=hostile, pid=1, queues=[hostile], strategy=hostile)
    rows.processing(hostile)
    assert "<script>alert" not in operator.get(WORKERS).text
