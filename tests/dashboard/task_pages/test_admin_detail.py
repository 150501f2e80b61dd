"""One task's page: what is known of it, read only and harmless to look at."""

import html
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import tasks
from dashboard.task_pages import failure, timeline
from tasks import operations
from tasks.models import Attempt, Intervention, RefusedWrite, Task, Worker
from tasks.operations import Settings
from tasks.support import audit
from tasks.support.audit import Who
from tests.people import client_of
from tests.sessions import session, wait_until_blocked
from tests.tasks import handlers, rows

LIST = "/admin/tasks/task/"
RUN = Path(tasks.__file__).parent / "worker" / "run.py"

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer():
    return client_of("Viewers")


def page_of(client, task) -> str:
    page = client.get(f"{LIST}{task.pk}/")
    assert page.status_code == 200
    return page.text


def test_arguments_are_shown_and_their_secrets_are_not(viewer):
    task = rows.completed(
        task_path=handlers.log_in.module_path,
        args=["anna", "swordfish"],
        kwargs={"note": {"token": "t-123"}},
        return_value={"api_key": "k-456", "id": 7},
    )
    text = page_of(viewer, task)
    assert "anna" in text
    for secret in ("swordfish", "t-123", "k-456"):
        assert secret not in text
    assert text.count("[redacted]") == 3


def test_attempts_are_shown_with_their_tracebacks(viewer):
    task = rows.failed()
    Attempt.objects.create(
        task=task,
        number=5,
        worker_id="w7f",
        outcome="timed_out",
        exception_class="builtins.ValueError",
        traceback="line 12",
    )
    text = page_of(viewer, task)
    for expected in ("Timed out", "w7f", "builtins.ValueError", "line 12"):
        assert expected in text


def test_the_message_of_an_error_is_told_without_unfolding_its_traceback(viewer):
    task = rows.failed()
    told = {
        "app.errors.Declined": "  raise Declined\napp.errors.Declined: card <1013>\nhas expired",
        "x.Quiet": "line 1",
    }
    for number, (name, traceback) in enumerate(told.items()):
        Attempt.objects.create(
            task=task, number=number, worker_id="w", outcome="failed", exception_class=name, traceback=traceback
        )
    text = page_of(viewer, task)
    assert "<summary>app.errors.Declined: card &lt;1013&gt;</summary>" in text
    assert '<strong translate="no">Quiet</strong>' in text


TRACEBACK = f"""Traceback (most recent call last):
  File "/srv/venv/lib/python3.12/site-packages/django/tasks/base.py", line 9, in call
    return self.func()
  File "{RUN}", line 80, in run
    task.call()
  File "/srv/shop/tasks.py", line 76, in charge_card
    raise CardDeclined(order)
    ^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/venv/lib/python3.12/site-packages/bank.py", line 4, in ask
    raise CardDeclined(order)
shop.errors.CardDeclined: the card of order 1002
"""


def declined(task: Task, **columns: object) -> Attempt:
    """A failed attempt whose exception was raised in a library that the task called."""
    known = {"number": 1, "worker_id": "w7f", "outcome": "failed", "exception_class": "shop.errors.CardDeclined"}
    known["fingerprint"] = f"{'a' * 12} shop/tasks.py:charge_card"
    return Attempt.objects.create(task=task, **{**known, "traceback": TRACEBACK, **columns})


def test_the_failure_is_on_top_with_its_place_in_the_code(viewer):
    task = rows.failed()
    declined(task)
    text = page_of(viewer, task)
    panel = text[text.index('class="failure"') : text.index("</section>")]
    assert text.index('class="failure"') < text.index('id="facts"')
    assert '<strong translate="no">CardDeclined: the card of order 1002</strong>' in panel
    assert "/srv/shop/tasks.py:76 in charge_card" in panel
    assert [" ".join(found.split()) for found in re.findall(r"<summary[^>]*>(.*?)</summary>", panel, re.DOTALL)] == [
        "2 frames of libraries",
        "1 frame of libraries",
    ]
    assert "raise CardDeclined(order)\n    ^^^^" in panel.split("</details>")[1].split("<details>")[0]
    assert "Failed after 5 attempts" not in text


def test_a_failure_without_code_of_ones_own_has_no_place():
    assert failure.place_of('  File "/usr/lib/python3/dist-packages/bank.py", line 4, in ask\n    ask()') == ""
    assert failure.place_of("") == ""


@pytest.mark.parametrize(
    ("age", "often"),
    [
        (timedelta(minutes=9), "1 this hour"),
        (timedelta(days=2), "1 in 7 days"),
        (timedelta(days=9), "Attempts that failed like this"),
    ],
)
def test_an_old_failure_says_how_often_it_happened_in_a_longer_time(viewer, age, often):
    task = rows.failed()
    declined(task, finished_at=timezone.now() - age)
    text = page_of(viewer, task)
    assert f"{often} →</a>" in text
    assert "\N{MULTIPLICATION SIGN} 0" not in text


def test_the_failure_tells_how_many_there_were_and_leads_to_its_neighbours(viewer):
    first, other, task, last = (rows.failed() for _ in range(4))
    now = timezone.now()
    declined(first, finished_at=now - timedelta(hours=2))
    declined(other, fingerprint=f"{'b' * 12} shop/tasks.py:pay")
    for one in (task, last):
        declined(one, finished_at=now)  # as of one batch
    text = page_of(viewer, task)
    assert "\N{MULTIPLICATION SIGN} 2 this hour" in text
    assert f'href="/admin/ops/failures/{"a" * 12}/"' in text
    assert f'href="{LIST}{first.pk}/" rel="prev"' in text
    assert f'href="{LIST}{last.pk}/" rel="next"' in text
    assert 'rel="next"' not in page_of(viewer, last)


def test_a_failure_without_a_fingerprint_leads_nowhere(viewer):
    task = rows.failed()
    declined(task, fingerprint="")
    assert "/admin/ops/failures/" not in page_of(viewer, task).partition('class="failure"')[2]


@pytest.mark.parametrize("make", [rows.completed, rows.failed])
def test_a_task_without_an_exception_has_no_failure(viewer, make):
    task = make()
    if make is rows.completed:
        declined(task)
    assert 'class="failure"' not in page_of(viewer, task)


def test_each_attempt_tells_how_long_it_waited_and_ran(viewer):
    task = rows.completed(
        attempt=2,
        created_at="2026-01-01T00:00:00Z",
        run_after="2026-01-01T00:01:00Z",
        started_at="2026-01-01T00:01:02.043Z",
        finished_at="2026-01-01T00:01:02.0442Z",
    )
    declined(task, started_at="2026-01-01T00:00:01.500Z", finished_at="2026-01-01T00:00:01.750Z")
    text = page_of(viewer, task)
    bars = " ".join(re.sub(r"<[^>]+>", " ", text[text.index('id="spans"') : text.index("</ol>")]).split())
    assert "attempt 1 waited 1.500 s ran 250 ms attempt 2 waited 2.043 s ran 1.2 ms" in bars
    assert '<rect class="waited" width="85.7%"' in text


def test_a_task_that_was_run_again_waited_from_then_on():
    task = Task(status="READY", created_at=moment(0), run_after=moment(100))
    ended = Attempt(number=1, outcome="failed", started_at=moment(5), finished_at=moment(6))
    again = Intervention(action="requeue", at=moment(100))
    found = timeline.spans(task, [ended], [again], moment(101.5))
    assert [(span.waited, span.ran, span.is_open) for span in found] == [
        ("5.000 s", "1.000 s", False),
        ("1.500 s", "", True),
    ]


def test_a_task_that_is_not_due_has_not_waited_yet():
    task = Task(status="READY", created_at=moment(0), run_after=moment(100))
    assert timeline.spans(task, [], [], moment(50)) == []


def test_a_task_of_a_dead_worker_does_not_run(viewer):
    assert "claimed for" in page_of(viewer, rows.processing(rows.dead_worker()))
    with rows.living_worker("w7f", current_since=timezone.now()) as worker_id:
        task = rows.processing(worker_id)
        Worker.objects.update(current_task_id=task.pk)
        assert "runs for" in page_of(viewer, task)


def moment(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def test_long_arguments_fold_and_short_ones_do_not(viewer):
    text = page_of(viewer, rows.ready(args=[1001], kwargs={"note": "x" * 100}))
    assert "<code>[1001]</code>" in text
    assert "<summary>{&quot;note&quot;: &quot;xxx" in text
    assert "Keyword arguments" not in page_of(viewer, rows.ready())


def test_parts_that_are_empty_are_not_shown(viewer):
    text = page_of(viewer, rows.failed())
    for heading in ("Unsuccessful attempts", "Refused late writes", "Audit</h2>", "Waiting behind it"):
        assert heading not in text


def test_one_button_is_primary_and_the_rest_is_behind_the_menu():
    operator = client_of("Operators")
    failed = page_of(operator, rows.failed())
    assert failed.count("button primary") == 1
    before, menu = failed.split('role="menu"', 1)
    assert 'data-action="requeue"' in before
    for action in ("quarantine", "cancel"):
        assert f'data-action="{action}"' in menu
        assert f'data-action="{action}"' not in before
    assert "button primary" not in page_of(operator, rows.ready())


@pytest.mark.django_db(transaction=True)
def test_who_waits_for_the_row_is_named(viewer):
    task = rows.failed()
    lock = f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE"
    with session("psql") as holder, session("impatient") as waiter, ThreadPoolExecutor(1) as pool:
        holder.execute(lock)
        waits = pool.submit(waiter.execute, lock)
        pid = waiter.info.backend_pid
        wait_until_blocked(pid)
        text = page_of(viewer, task)
        holder.rollback()
        waits.result()
    assert f'/admin/ops/locks/#node-{pid}"\n    >pid {pid} (impatient)</a>' in text


@pytest.mark.django_db(transaction=True)
def test_who_holds_the_row_now_is_named(viewer):
    task = rows.ready()
    with session("psql") as other:
        other.execute(f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE")
        assert f"Held by pid {other.info.backend_pid} (psql)" in page_of(viewer, task)


def test_the_command_of_each_button_stands_beside_it():
    task = rows.failed()
    text = page_of(client_of("Operators"), task)
    assert f"python manage.py requeue_tasks {task.pk}" in text
    assert f"python manage.py cancel_tasks {task.pk}" in text
    assert 'data-action="requeue"' in text
    assert 'data-action="cancel"' in text
    assert 'data-action="recover"' not in text


def test_a_finished_task_offers_nothing_to_press():
    assert "data-action" not in page_of(client_of("Operators"), rows.completed())


def test_who_may_not_act_reads_which_right_is_missing_and_who_has_it(viewer):
    text = page_of(viewer, rows.failed())
    assert "You lack the right tasks.requeue_task (“Can run tasks again”)." in text
    assert "Groups that have it: Lock administrators, Operators." in text
    assert text.count("disabled") == 5


def test_the_audit_of_the_task_is_shown(viewer):
    task = rows.ready()
    operations.cancel([task.pk], Who("anna", "command"), Settings(reason="by mistake"))
    text = page_of(viewer, task)
    assert "anna (command)" in text
    assert "v1 → v2" in text
    assert "by mistake" in text


def test_a_task_that_was_pruned_is_a_404(viewer):
    page = viewer.get(f"{LIST}4711/")
    assert page.status_code == 404
    assert "Task #4711 does not exist: it was pruned, or the id is wrong." in page.text


@pytest.mark.parametrize("address", ["/admin/nowhere/", "/nowhere/"])
def test_an_address_without_a_page_is_told_in_words(viewer, address):
    page = viewer.get(address)
    assert page.status_code == 404
    assert "There is no page at this address." in page.text


@pytest.mark.parametrize("address", ["add/", "1/change/", "1/delete/"])
def test_there_is_no_form_for_a_task(address):
    rows.ready()
    assert client_of(is_superuser=True).get(f"{LIST}{address}").status_code in (403, 404)


def test_who_waits_behind_it_is_listed_and_linked(viewer):
    first, *others = [rows.ready(ordering_key="anna") for _ in range(25)]
    text = page_of(viewer, first)
    assert text.count('<li id="behind-') == 20
    assert f"#{others[0].pk}" in text
    assert "?key=anna" in text
    assert '<li id="behind-' not in page_of(viewer, others[0])
    assert f"Held by #{first.pk}" in page_of(viewer, others[0])


@pytest.mark.django_db(transaction=True)
def test_the_session_that_holds_the_row_is_linked(viewer):
    task = rows.ready()
    with session("psql") as other:
        other.execute(f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE")
        assert f"/admin/ops/locks/#node-{other.info.backend_pid}" in page_of(viewer, task)


def test_a_task_that_is_being_cancelled_says_so_until_its_child_has_ended(viewer):
    with rows.living_worker("w7f") as worker_id:
        task = rows.processing(worker_id)
        operations.cancel([task.pk], Who("anna", "page"))
        text = page_of(viewer, task)
        assert "Cancelling" in text
        assert "ago to end it, and has not done so yet" in text
        assert 'data-action="cancel"' not in text


def test_the_part_that_refreshes_itself_is_served_alone(viewer):
    task = rows.failed()
    part = viewer.get(f"{LIST}{task.pk}/", headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert "Failed after 5 attempts" in part
    part = viewer.get(LIST, headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert f'id="task-{task.pk}"' in part


def test_the_number_of_statements_does_not_grow_with_the_history(viewer):
    task = rows.failed(ordering_key="anna")

    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            viewer.get(f"{LIST}{task.pk}/", headers={"HX-Request": "true"})  # without the menu's counts
        return len(queries)

    Task.objects.select_for_update().get()  # a held row costs one statement more, which asks who waits for it
    few = statements()
    for number in range(9):
        Attempt.objects.create(task=task, number=number, worker_id="w7f", outcome="failed")
        RefusedWrite.objects.create(task_id=task.pk, worker_id="w7f", expected_version=number, intent="complete")
        operations.cancel([task.pk], Who("anna", "page"), dry_run=True)
        Intervention.objects.create(actor="anna", source="page", action="requeue", target=audit.task(task.pk))
    assert statements() == few
    assert few <= 25


@pytest.mark.parametrize(
    "make", [rows.ready, rows.failed, rows.cancelled, rows.completed, lambda: rows.processing("w")]
)
def test_the_statements_behind_the_verdict_are_shown(viewer, make):
    text = page_of(viewer, make())
    assert "SQL behind this" in text
    assert "pg_locks" in text[text.index("SQL behind this") :]


def test_the_session_of_the_worker_is_linked(viewer):
    with rows.living_worker("w7f") as worker_id:
        task = rows.processing(worker_id)
        text = page_of(viewer, task)
    pid = re.search(r"/admin/ops/locks/#node-(\d+)", text[text.index("Its database session") :])
    assert pid


def test_a_failing_function_is_quarantined_from_one_of_its_tasks():
    operator = client_of("Operators")
    task = rows.failed(task_path="app.bad&=")
    kin = [rows.ready(task_path="app.bad&="), rows.failed(task_path="app.bad&=")]
    text = page_of(operator, task)
    button = text[text.index('data-kin="quarantine"') :]
    query = html.unescape(re.search(r'name="filter" value="([^"]*)"', button)[1])
    page = operator.post(f"{LIST}all/quarantine/", {"filter": query})
    assert "3 tasks</strong> match this filter" in page.text
    assert all(f"#{one.pk}" in page.text for one in kin)
    assert 'data-kin="requeue"' in text
    assert 'data-kin="requeue"' not in page_of(operator, kin[0])
    assert "data-kin" not in page_of(operator, rows.completed())
