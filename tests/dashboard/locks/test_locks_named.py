"""Named locks in the tree of who waits for whom: a lease stands in no pg_locks, and no circle through it breaks."""

import doctest
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from django.db import connection

from dashboard.locks import activity, identity
from dashboard.locks.activity import Activity
from dashboard.locks.history import Sampler
from dashboard.locks.tree import tree_lines
from dashboard.models import LabRun, LockWait
from orders.models import Order
from tasks.models import LockWaiter, Worker
from tasks.support import database
from tasks.support.database import session_name
from tests.commands import database_url, run
from tests.dashboard.scenes import LOCK_ORDER, Scene
from tests.lockers import Locker, locker
from tests.people import client_of
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
LOCKS = "/admin/ops/locks/"
ACQUIRE = "SELECT rowlock_lock_acquire('nightly', 'a shell script', interval '1 minute', hostname => 'db9', pid => 77)"


def called(process: str) -> str:
    """The address of the database, for a process whose own sessions have this name."""
    url = database_url()
    return f"{url}{'&' if '?' in url else '?'}application_name={quote(process)}"


@contextmanager
def holder(name: str, process: str = "report.py") -> Iterator[Locker]:
    """A process of this name that holds the named lock."""
    with locker(called(process), name, ttl=30) as process:
        assert process.hear()["event"] == "held"
        yield process


@contextmanager
def waiter(name: str, process: str = "report.py") -> Iterator[Locker]:
    """A process of this name that waits for the named lock."""
    before = LockWaiter.objects.count()
    with locker(called(process), name, ttl=30, wait=60) as process:
        wait_until(lambda: LockWaiter.objects.count() > before)
        yield process


def chain(seen: Activity) -> list[tuple[int, str, str]]:
    """The tree, line by line: level, who, and what for."""
    return [
        (line.level, str(line.node.session.identity), line.node.waits_for.target if line.node.waits_for else "")
        for line in tree_lines(seen.roots)
    ]


def test_a_waiter_stands_under_the_session_of_the_holder() -> None:
    with holder("nightly"), waiter("nightly"):
        seen = activity.read()
        assert chain(seen) == [(1, "named lock nightly", ""), (2, "named lock nightly", "nightly")]
        [waits] = [found for found in seen.locks if not found.granted and found.locktype == "named lock"]
        assert (waits.mode, waits.wait_seconds is not None) == ("lease", True)
        html = client_of("Viewers").get(LOCKS).content.decode()
    assert "for the named lock nightly (lease)" in html


def test_who_stands_behind_the_session_of_a_named_lock_is_named_and_linked() -> None:
    """A command, a worker with its task, and a run of the lab; that of a stranger has the lock's name alone."""
    LabRun.objects.create(id=4711, pattern="unsafe", plan={}, schema="lab_4711")
    task = rows.processing("w7f")
    with (
        rows.living_worker("w7f", current_task_id=task.pk),
        holder("nightly", "rowlock:cmd:send_shipped_emails"),
        waiter("nightly", "rowlock:worker:w7f"),
        waiter("nightly", "rowlock:lab:lab_4711"),
    ):
        told = [who for _level, who, _target in chain(activity.read())]
        html = client_of("Viewers").get(LOCKS).content.decode()
        text = run("show_locks", "--tree").stdout
    parties = ["command send_shipped_emails", "worker w7f", "lab run lab_4711"]
    names = [f"named lock nightly of {party}" for party in parties]
    assert (told[0], sorted(told)) == (names[0], sorted(names))
    assert [name for name in names if name not in text] == []
    tree = html[html.index('id="lock-tree"') :]
    links = ["/admin/ops/schedule/", "/admin/ops/workers/#worker-w7f", "/admin/ops/lab/4711/"]
    assert [link for link in [*links, f"/admin/tasks/task/{task.pk}/"] if f'href="{link}"' not in tree] == []


@pytest.mark.parametrize("module", [identity, database])
def test_the_examples_of_names(module) -> None:
    results = doctest.testmod(module)
    assert (results.failed, results.attempted > 0) == (0, True)


@pytest.mark.parametrize("name", ["n" * 80, "ночной отчёт", "a@b", "a@cmd:b"])
def test_a_long_or_strange_name_of_a_lock_hides_nobody(name) -> None:
    with session(session_name("lock", name, party="rowlock:cmd:send_shipped_emails")) as other:
        other.execute("SELECT")
        one = activity.read().by_pid[other.info.backend_pid]
    assert (one.identity.kind, str(one.identity.party)) == ("lock", "command send_shipped_emails")


def test_a_holder_without_a_session_is_a_node_of_its_own() -> None:
    with connection.cursor() as cursor:
        cursor.execute(ACQUIRE)
    with waiter("nightly"):
        [root] = activity.read().roots
        assert root.session.is_outsider
        assert "held by db9 pid 77 (a shell script), lease ends in" in root.session.label
        assert root.victims == 1
        html = client_of("Lock administrators").get(LOCKS).content.decode()
        data = run("show_locks", "--json").data
        text = run("show_locks", "--tree").stdout
    assert f'id="node-{root.session.key}"' in html
    assert "/admin/ops/schedule/" in html[html.index("lock-tree") :]
    assert [(found["pid"], len(found["blocked"])) for found in data["blockers"]] == [(None, 1)]
    assert "named lock nightly, held by db9" in text.splitlines()[0]


def test_who_holds_one_lock_and_waits_for_another_links_both_queues() -> None:
    with holder("b"), holder("a"), waiter("a"), waiter("b"):
        # As if the waiter for b were the thread that holds a.
        LockWaiter.objects.filter(name="b").update(holds=[fence_of("a")])
        assert chain(activity.read()) == [
            (1, "named lock b", ""),
            (2, "named lock b", "b"),
            (3, "named lock a", "its holder waits for b"),
            (4, "named lock a", "a"),
        ]


def fence_of(name: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT fence FROM tasks_lock WHERE name = %s", [name])
        return cursor.fetchone()[0]


def test_a_circle_through_a_row_and_a_named_lock_is_said() -> None:
    """Worker one has the lock and waits for the row; worker two has the row and waits for the lock: no deadlock to
    PostgreSQL, which sees neither the lease nor that two sessions are one worker.
    """
    order = Order.objects.create(customer_email="a@example.test")
    with holder("nightly") as one, waiter("nightly") as two, Scene() as scene:
        for worker_id, process in (("one", one), ("two", two)):
            Worker.objects.create(id=worker_id, hostname=socket.gethostname(), pid=process.pid)
        scene.holding("rowlock:worker:two", LOCK_ORDER, [order.pk])
        scene.waiting("rowlock:worker:one", LOCK_ORDER, [order.pk])
        seen = activity.read()
        html = client_of("Viewers").get(LOCKS).content.decode()
        text = run("show_locks", "--tree").stdout
        [circle] = seen.circles
        who = [str(seen.by_pid[pid].identity) for pid in circle]
    assert sorted(who) == ["named lock nightly", "named lock nightly", "worker one", "worker two"]
    assert "A circle:" in html
    assert "never ends by itself" in text


def test_waits_for_named_locks_are_kept_in_the_history() -> None:
    with holder("nightly", "rowlock:cmd:report"), waiter("nightly"):
        assert Sampler(connection).sample() == Sampler(connection).sample() == 1
    row = LockWait.objects.get()
    assert (row.locktype, row.target, row.blocker_who) == ("named lock", "nightly", "rowlock:lock:nightly@cmd:report")


def test_nobody_waiting_for_a_named_lock_costs_one_more_question(django_assert_num_queries) -> None:
    """The question: the locked tables, then the waiters in a transaction with limits of its own."""
    with holder("nightly"), django_assert_num_queries(6):
        assert activity.read().roots == ()
