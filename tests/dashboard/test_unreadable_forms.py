"""What no page can read of a form is answered with 400 and a sentence; nothing is done, and nothing is written."""

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpResponse

from dashboard.models import Acknowledgement
from dashboard.task_pages.actions import Seen
from orders.models import Account, Entry, Order
from tasks.models import BulkRun, ExpectedCommand, Intervention, Queue, Task
from tasks.operations import tokens
from tasks.support import reading
from tests import old_rows
from tests.orders import orders
from tests.people import client_of
from tests.tasks import bulk, rows
from tests.tasks.handlers import nothing

pytestmark = pytest.mark.django_db
GROUPS = ("Operators", "Lock administrators", "Account managers")
TASKS, MB_2_4 = "/admin/tasks/task/", 2_400_000
ENQUEUE = f"{TASKS}enqueue/"
UNREADABLE = {
    "long": ("x" * MB_2_4, "at most 1000"),
    "NUL": ("a\0b", "NUL|Null"),
    "lines": ("one\nall is well", "control character U+000A"),
}


@pytest.fixture
def client():
    return client_of(*GROUPS)


@pytest.fixture
def account():
    account = Account(id=4711, owner=User.objects.create_user("owner"))
    account.save()
    return account


def seen(**columns: Any) -> str:
    return str(Seen.of(rows.failed(**columns)))


def of_orders() -> dict[str, Any]:
    [order] = orders.shipped(1, email_state="unknown", email_owner="web1:7:ab", email_attempts=1)
    return {"seen": [f"{order.pk}:{order.version}"], "as": "sent"}


# Each form that asks a reason: its address, and what it sends beside that.
def of_schedules() -> dict[str, str]:
    when = {"name": "n", "cron": "* * * * *", "missed": "skip", "overlap": "skip"}
    return {"task": nothing.module_path, "token": tokens.new_token(), **when}


FORMS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "pause": ("/admin/tasks/queue/do/pause/", lambda: {"queue": "mail"}),
    "cancel": (f"{TASKS}do/cancel/", lambda: {"seen": [seen()], "confirmed": "1"}),
    "cancel all": (f"{TASKS}all/cancel/", lambda: {"filter": "status=FAILED", "confirmed": "1", "upto": "9"}),
    "stop a bulk run": (f"{TASKS}runs/%(run)d/stop/", dict),
    "enqueue": (ENQUEUE, lambda: {"task": nothing.module_path, "token": tokens.new_token()}),
    "take back": ("/admin/ops/stale/take-back/", lambda: {"worker": ["w1"], "confirmed": "1"}),
    "stop a worker": ("/admin/ops/workers/stop/", lambda: {"worker": "w1", "confirmed": "1"}),
    "release unstarted": ("/admin/ops/workers/release/", lambda: {"worker": "w1", "confirmed": "1"}),
    "release a lock": ("/admin/ops/schedule/release/", lambda: {"name": "nightly", "fence": "1", "confirmed": "1"}),
    "pause a schedule": ("/admin/ops/schedule/do/pause/", lambda: {"schedule": "1 nightly"}),
    "run a schedule": ("/admin/ops/schedule/do/run/", lambda: {"schedule": "1 nightly", "confirmed": "1"}),
    "add a schedule": ("/admin/ops/schedule/add/", of_schedules),
    "forget": ("/admin/ops/schedule/forget/", lambda: {"name": "nightly", "confirmed": "1"}),
    "signal": ("/admin/ops/locks/signal/", lambda: {"pid": "1", "started": "2026-01-01T00:00Z", "action": "cancel"}),
    "acknowledge": ("/admin/ops/attention/acknowledge/", lambda: {"line": "x", "size": "1", "lasts": "8h"}),
    "resolve": ("/admin/orders/order/resolve/", of_orders),
    "move money": ("/admin/orders/account/4711/move/", lambda: {"operation": "deposit", "amount": "1"}),
}


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("form", FORMS)
def test_a_reason_that_cannot_be_kept_is_refused(client, account, form, kind):
    """Ten pauses with reasons of 2.4 MB once made the audit 24 MB, for good."""
    address, fields = FORMS[form]
    run = bulk.ask()
    before = Intervention.objects.count()
    ExpectedCommand.objects.create(name="nightly", every="1:00:00")
    reason, words = UNREADABLE[kind]
    answer = client.post(address % {"run": run.pk}, {**fields(), "reason": reason})
    told = html.unescape(answer.text)
    assert (answer.status_code, any(word in told for word in words.split("|"))) == (400, True)
    assert Intervention.objects.count() == before
    assert [model for model in (Queue, Entry, Acknowledgement) if model.objects.exists()] == []
    assert Order.objects.of_unknown_fate().count() == Order.objects.count()


@pytest.mark.parametrize("fence", ["9" * 4300, "0" * 5000, "1_0", "٣", str(2**63), "-1", ""])
def test_a_fence_that_is_no_number_is_refused(client, fence):
    answer = client.post("/admin/ops/schedule/release/", {"name": "nightly", "fence": fence, "confirmed": "1"})
    assert (answer.status_code, "not made by this page" in answer.text) == (400, True)


@pytest.mark.parametrize("name", ["mail\nall is well", "mail\x1b[2J", "x" * 256, "a\0b"])
def test_a_name_that_cannot_be_is_refused(client, name):
    answers = [
        client.post("/admin/tasks/queue/do/pause/", {"queue": name}),
        client.post("/admin/ops/schedule/release/", {"name": name, "fence": "1"}),
        client.post("/admin/ops/schedule/forget/", {"name": name}),
        client.post("/admin/ops/schedule/do/pause/", {"schedule": f"1 {name}"}),
        client.post("/admin/ops/schedule/switch-on/", {"name": name}),
        client.post("/admin/ops/workers/stop/", {"worker": name}),
        client.post("/admin/ops/stale/take-back/", {"worker": [name]}),
        client.post(ENQUEUE, {"task": nothing.module_path, "queue_name": name, "token": tokens.new_token()}),
        client.post(ENQUEUE, {"task": nothing.module_path, "ordering_key": name, "token": tokens.new_token()}),
    ]
    assert [answer.status_code for answer in answers] == [400] * len(answers)
    assert [model for model in (Queue, Task, Intervention) if model.objects.exists()] == []


NUMBERS = ["1_000", "1e1", "٣", "+5", "0x10"]


@pytest.mark.parametrize("written", NUMBERS)
def test_only_plain_digits_are_an_amount_or_a_number(client, account, written):
    def refused(answer: HttpResponse) -> bool:
        return answer.status_code == 400

    money = {"operation": "deposit", "strategy": "pessimistic", "token": tokens.new_token()}
    assert refused(client.post("/admin/orders/account/4711/move/", {**money, "amount": written}))
    transfer = {**money, "operation": "transfer", "amount": "1", "to_id": written}
    assert refused(client.post("/admin/orders/account/4711/move/", transfer))
    spread = {"seen": [seen()], "confirmed": "1", "spread_minutes": written}
    assert refused(client.post(f"{TASKS}do/requeue/", spread))
    burst = {"strategy": "skip_locked", "limit_seconds": "60", "max_tasks": written, "token": tokens.new_token()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ROWLOCK_BURST", "1")
        assert refused(client.post("/admin/ops/burst/", burst))
    client.post("/admin/orders/order/patterns/send_shipped_emails/", {"limit": written})  # says so on the list
    account.refresh_from_db()
    assert (account.balance, Intervention.objects.count()) == (0, 0)


def test_a_plain_amount_is_moved(client, account):
    form = {"operation": "deposit", "strategy": "pessimistic", "token": tokens.new_token(), "amount": " 12.50 "}
    assert client.post("/admin/orders/account/4711/move/", form).status_code == 302
    account.refresh_from_db()
    assert str(account.balance) == "12.50"


class TestFilters:
    def test_a_condition_longer_than_any_name_is_refused(self, client):
        for address in (f"{TASKS}?q=", f"{TASKS}?queue=", "/admin/ops/audit/?target="):
            assert client.get(address + "x" * 1001).status_code == 400

    def test_the_audit_does_not_keep_a_filter_of_megabytes(self, client):
        form = {"confirmed": "1", "upto": "9", "reason": "why"}
        for filter in ("&".join(f"queue={'x' * 900}{number}" for number in range(900)), f"error={'x' * MB_2_4}"):
            client.post(f"{TASKS}all/cancel/", {**form, "token": tokens.new_token(), "filter": filter})
        assert [model for model in (Intervention, BulkRun) if model.objects.exists()] == []
        named = "&".join(f"id={number}" for number in range(1, 900))
        client.post(f"{TASKS}all/cancel/", {**form, "token": tokens.new_token(), "filter": named})
        [entry] = Intervention.objects.all()
        assert (len(entry.action), entry.action[-1]) == (1000, "…")
        assert BulkRun.objects.get().filter.startswith(named)


class TestTheDemosQueues:
    """An operator once moved tasks of a site without the demo into `demo-x`, and removed them with it."""

    def test_nobody_moves_a_task_there(self, client):
        tasks = [rows.ready() for _ in range(3)]
        move = {"seen": [str(Seen.of(task)) for task in tasks], "confirmed": "1", "queue_name": "demo-x"}
        several = {
            "filter": "queue=default",
            "upto": str(tasks[-1].pk),
            "token": tokens.new_token(),
            "confirmed": "1",
        }
        for address, form in ((f"{TASKS}do/edit/", move), (f"{TASKS}all/edit/", {**several, "queue_name": "demo-x"})):
            answer = client.post(address, form)
            assert (answer.status_code, "queue of the demo" in answer.text) == (400, True)
        assert client.post("/admin/ops/demo/remove/", {"reason": "x"}).status_code == 404
        assert set(Task.objects.values_list("queue_name", flat=True)) == {"default"}
        assert Task.objects.count() == 3
        assert [model for model in (Intervention, BulkRun) if model.objects.exists()] == []

    def test_nobody_enqueues_one_there(self, client):
        for path, queue in ((nothing.module_path, "demo-x"), ("dashboard.tasks.nap", "")):
            answer = client.post(ENQUEUE, {"task": path, "queue_name": queue, "token": tokens.new_token()})
            assert answer.status_code == 400
        assert "dashboard.tasks.nap" not in client.get(ENQUEUE).text
        assert not Task.objects.exists()


class TestQueuesOfEarlierVersions:
    NAME = "mail\nall is well\x1b[2J"

    @pytest.fixture(autouse=True)
    def planted(self, settings):
        settings.SHARED_LOOK_SECONDS = 0
        with old_rows.unchecked():
            rows.ready(queue_name=self.NAME)
            Queue.objects.create(name=self.NAME, paused=True)

    @pytest.mark.parametrize("address", ["/admin/tasks/queue/", "/admin/"])
    def test_their_pages_open_and_show_the_line_break(self, client, address):
        answer = client.get(address)
        assert answer.status_code == 200
        assert r"mail\nall is well\x1b[2J" in answer.text

    def test_no_page_fails(self, client):
        for address in (TASKS, "/admin/ops/stale/", "/admin/ops/workers/", "/metrics", f"{TASKS}?queue=mail%0Aall"):
            assert client.get(address).status_code == 200

    def test_what_nobody_can_type_has_no_buttons(self, client):
        text = client.get("/admin/tasks/queue/").text
        assert 'data-action="resume"' not in text
        assert "/why/mail" not in text


def test_every_field_of_a_reason_stops_at_the_same_length():
    templates = (settings.BASE_DIR / "templates").rglob("*.html")
    fields = re.findall(r'<input[^>]*name="reason"[^>]*>', "".join(path.read_text() for path in templates))
    assert len(fields) >= 3
    assert [field for field in fields if f'maxlength="{reading.LONGEST_REASON}"' not in field] == []
