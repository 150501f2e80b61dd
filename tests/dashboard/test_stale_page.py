"""What is stuck: which rows, with which evidence, and taking back what one worker or all of the dead hold."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.live import snapshots
from tasks.models import Epoch, Intervention, Queue, Task, Worker
from tasks.queue import presence
from tests.html import answers
from tests.people import client_of
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)  # other sessions must see the rows
STALE, TAKE = "/admin/ops/stale/", "/admin/ops/stale/take-back/"


@pytest.fixture
def operator():
    return client_of("Operators")


def shown(client, query: str = "") -> list[int]:
    groups = client.get(STALE + query).context["seen"].groups
    return [int(row.id) for group in groups for row in group.rows]


def statuses() -> list[str]:
    return list(Task.objects.order_by("pk").values_list("status", flat=True))


def test_it_says_so_when_nothing_is_stuck(operator):
    rows.ready(), rows.failed(), rows.completed()
    page = operator.get(STALE)
    assert "Nothing is stuck" in page.text
    assert 'data-action="recover"' not in page.text


@committed
def test_only_tasks_of_workers_that_are_gone_are_shown(operator):
    with rows.living_worker() as alive:
        rows.processing(alive)
        dead, unknown = rows.processing(rows.dead_worker()), rows.processing("registered-nowhere")
        assert sorted(shown(operator)) == [dead.pk, unknown.pk]


@committed
def test_a_silent_worker_is_shown_with_its_open_session_and_force_is_offered(operator):
    with rows.living_worker(lease_seconds=1) as worker:
        Worker.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=40))
        Epoch.objects.update_or_create(
            id=1, defaults={"token": presence.see_epoch(connection), "first_seen_at": timezone.now()}
        )
        Worker.objects.update(lease_seconds=35)
        task = rows.processing(worker)
        page = operator.get(STALE)
        assert "Worker silent" in page.text
        assert "presence lock still held" in page.text
        assert "its database session is open" in page.text
        assert 'data-action="requeue"' in page.text
        [group] = page.context["seen"].groups
        assert (group.is_dead, [row.action.name for row in group.rows]) == (False, ["requeue"])
        assert str(task.pk) in page.text


def test_the_evidence_of_a_death_is_given(operator):
    worker = rows.just_died_worker("w-died", current_task_id=None)
    Worker.objects.update(missing_since=timezone.now() - timedelta(minutes=3))
    running, unstarted = rows.processing(worker, attempt=2), rows.processing(worker)
    Worker.objects.update(current_task_id=running.pk)
    Queue.objects.create(name="default", recovery="ask")
    page = operator.get(STALE)
    assert "The database session of worker w-died disconnected at least 3 min ago." in page.text
    assert "it has no database session" in page.text
    assert "Its worker had begun it." in page.text
    assert f"Its worker ran #{running.pk} and had not begun this one." in page.text
    assert "<strong>manual</strong>" in page.text
    assert ">2/5<" in page.text
    assert unstarted.pk in shown(operator)


def test_without_a_worker_it_says_that_nobody_will_run_them(operator):
    rows.processing(rows.dead_worker())
    assert "No worker is alive" in operator.get(STALE).text
    assert "nobody will run it" in operator.post(TAKE, {"worker": "w-dead"}).text


@committed
def test_with_a_worker_it_does_not(operator):
    rows.processing(rows.dead_worker())
    with rows.living_worker():
        assert "No worker is alive" not in operator.get(STALE).text


def test_after_a_restart_it_says_until_when_recovery_waits(operator):
    Worker.objects.create(id="w-away", hostname="host", pid=1, presence_epoch="an earlier one", lease_seconds=90)
    Epoch.objects.update_or_create(
        id=1, defaults={"token": presence.see_epoch(connection), "first_seen_at": timezone.now()}
    )
    rows.processing("w-away")
    page = operator.get(STALE)
    assert "The database restarted" in page.text
    assert "1 worker is not back yet." in page.text
    left = (page.context["seen"].restart.until - page.context["seen"].now).total_seconds()
    assert 80 < left <= 90


@committed
def test_after_a_restart_it_says_when_all_are_back(operator):
    token = presence.see_epoch(connection)
    Epoch.objects.update_or_create(id=1, defaults={"token": token, "first_seen_at": timezone.now()})
    with rows.living_worker("w-here", lease_seconds=90):
        assert "Every worker that held tasks is back." in operator.get(STALE).text


def test_long_after_a_restart_it_does_not(operator):
    rows.processing(rows.dead_worker())
    assert "The database restarted" not in operator.get(STALE).text


def test_taking_back_what_a_worker_holds_asks_first(operator):
    Queue.objects.create(name="default", recovery="ask")
    rows.processing(rows.dead_worker()), rows.processing("w-dead", attempt=5)
    preview = operator.post(TAKE, {"worker": "w-dead"})
    assert "2 tasks, by worker and queue" in preview.text
    assert "recover_tasks" in preview.text
    assert statuses() == ["PROCESSING", "PROCESSING"]
    page = operator.post(TAKE, {"worker": "w-dead", "confirmed": "1", "reason": "db1 is gone"}, follow=True)
    assert "2 tasks were taken back (1 READY, 1 FAILED): #" in answers(page.text)
    assert statuses() == ["READY", "FAILED"]
    told = Intervention.objects.values_list("actor", "source", "action", "reason")
    assert set(told) == {("anna", "page", "recover", "db1 is gone")}


def test_a_second_click_takes_nothing_and_says_so(operator):
    rows.processing(rows.dead_worker())
    form = {"worker": "w-dead", "confirmed": "1"}
    operator.post(TAKE, form)
    assert "Nothing was taken back" in operator.post(TAKE, form, follow=True).text
    assert Intervention.objects.count() == 1


def test_only_the_workers_that_were_shown_lose_their_tasks(operator):
    seen, later = rows.processing(rows.dead_worker("w-1")), rows.processing(rows.dead_worker("w-2"))
    operator.post(TAKE, {"worker": "w-1", "confirmed": "1"})
    assert [Task.objects.get(pk=task.pk).status for task in (seen, later)] == ["READY", "PROCESSING"]


@committed
def test_nothing_is_taken_from_a_worker_that_lives(operator):
    with rows.living_worker() as worker:
        rows.processing(worker)
        page = operator.post(TAKE, {"worker": worker, "confirmed": "1"}, follow=True)
    assert "1 task not changed: its worker is not dead" in page.text
    assert statuses() == ["PROCESSING"]


@committed
def test_a_locked_row_is_not_waited_for(operator):
    task = rows.processing(rows.dead_worker())
    with session() as other:
        other.execute(f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE")
        page = operator.post(TAKE, {"worker": "w-dead", "confirmed": "1"}, follow=True)
        pid = other.info.backend_pid
    assert f"#{task.pk} not changed: locked by pid {pid} (rowlock:test)" in answers(page.text)
    assert "its worker is not dead" not in page.text


@pytest.mark.parametrize("form", [{}, {"worker": ""}, {"worker": "x" * 300}, {"worker": "a\0b"}])
def test_a_form_that_no_page_made_is_refused(operator, form):
    answer = operator.post(TAKE, {**form, "confirmed": "1"})
    assert answer.status_code in (400, 302)
    assert not Intervention.objects.exists()


def test_a_viewer_sees_which_right_is_missing_and_may_not_take_back():
    rows.processing(rows.dead_worker())
    viewer = client_of("Viewers")
    page = viewer.get(STALE)
    assert "You lack the right tasks.recover_task" in page.text
    assert page.text.count("disabled") == 4
    assert viewer.post(TAKE, {"worker": "w-dead", "confirmed": "1"}).status_code == 403
    assert statuses() == ["PROCESSING"]


def test_a_row_is_taken_back_by_the_action_of_the_list_and_leads_back_here(operator):
    rows.processing(rows.dead_worker())
    [group] = operator.get(STALE).context["seen"].groups
    form = {"only": str(group.rows[0].seen), "next": STALE, "confirmed": "1"}
    answer = operator.post("/admin/tasks/task/do/recover/", form)
    assert answer["Location"] == STALE
    assert statuses() == ["READY"]


def test_many_are_paged_by_worker_and_id(operator, monkeypatch):
    monkeypatch.setattr("dashboard.stale.page_after.__kwdefaults__", {"limit": 2})
    held = [rows.processing(rows.dead_worker("w-1")).pk, *(rows.processing("w-1").pk for _ in range(2))]
    held += [rows.processing(rows.dead_worker("w-2")).pk]
    first = operator.get(STALE)
    assert shown(operator) == held[:2]
    assert first.context["seen"].numbers == {"w-1": 3, "w-2": 1}
    assert shown(operator, first.context["older"]) == held[2:]
    assert operator.get(f"{STALE}?worker=w-1&after=x").status_code == 400


def test_the_queries_do_not_grow_with_the_rows(operator, django_assert_max_num_queries):
    for number in range(5):
        worker = rows.dead_worker(f"w-{number}")
        for _ in range(5):
            rows.processing(worker)
    with django_assert_max_num_queries(32):
        operator.get(STALE)


def test_htmx_gets_the_rows_alone(operator):
    panel = operator.get(STALE, headers={"HX-Request": "true"}).text
    assert 'id="stale-rows"' in panel
    assert "<html" not in panel


def test_hostile_names_are_shown_as_text(operator):
    hostile = "<script>alert(1)</script>{{ 7|add:7 }}"
    rows.processing(hostile, queue_name=hostile, task_path=hostile)
    page = operator.get(STALE).text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_those_who_have_it_open_share_one_look(operator, settings, django_assert_max_num_queries):
    settings.SHARED_LOOK_SECONDS = 60
    snapshots.forget()
    first, second = rows.processing(rows.dead_worker()), client_of("Viewers", username="otto")
    htmx = {"HX-Request": "true"}
    assert f"stale-{first.pk}" in operator.get(STALE, headers=htmx).text
    with django_assert_max_num_queries(12), CaptureQueriesContext(connection) as asked:
        assert f"stale-{first.pk}" in second.get(STALE, headers=htmx).text
    assert not [query for query in asked.captured_queries if "FROM tasks_task" in query["sql"]]
    later = rows.processing("w-dead")
    assert f"stale-{later.pk}" in second.get(STALE).text, "a page that is opened looks for itself"
    snapshots.forget()
