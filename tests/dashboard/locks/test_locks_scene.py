"""A staged scene of six sessions, drawn right by page and command; a long queue, drawn fast."""

import re
from html.parser import HTMLParser

import pytest

from dashboard.locks import attribution
from dashboard.locks.tree import RowRef
from dashboard.models import LabRun
from orders.models import Account, Order
from tasks.models import Worker
from tasks.panels import Snapshot
from tests.commands import run
from tests.dashboard.scenes import LOCK_ORDER, Scene, queue_for_one_row, staged
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
LOCKS = "/admin/ops/locks/"
NODE = re.compile(r"node-(\d+)$")


class Nesting(HTMLParser):
    """Below which session each session of the drawn tree stands; None for the roots."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.parents: dict[int, int | None] = {}
        self._open: list[int | None] = []
        self.feed(html)
        assert self._open == [], "every <li> is closed"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "li":
            found = NODE.match(dict(attributes).get("id") or "")
            pid = int(found[1]) if found else None
            if pid is not None:
                self.parents[pid] = self._open[-1] if self._open else None
            self._open.append(pid)

    def handle_endtag(self, tag: str) -> None:
        if tag == "li":
            self._open.pop()


def drawn(group: str = "Viewers") -> str:
    """The tree as the page draws it."""
    html = client_of(group).get(LOCKS, headers={"HX-Request": "true"}).content.decode()
    return html[html.index('<ul id="lock-tree"') : html.index("</section>")]


def expected(scene: Scene) -> dict[int, int | None]:
    below = {
        "psql": None,
        "rowlock:worker:7f": "psql",
        "rowlock:cmd:transfer": "rowlock:worker:7f",
        "rowlock:cmd:recover_tasks": "rowlock:worker:7f",
        "report": "rowlock:cmd:recover_tasks",
        "rowlock:web": "rowlock:cmd:recover_tasks",
    }
    return {scene.pid(name): scene.pid(above) if above else None for name, above in below.items()}


def test_the_page_draws_every_kind_of_wait_under_its_blocker() -> None:
    with staged() as (scene, account):
        html = drawn()
        assert Nesting(html).parents == expected(scene)
        for kind in ("transactionid", "tuple", "advisory", "relation"):
            assert f"({kind}, " in html
        assert "for the sweep for dead workers" in html
        assert "for orders_entry (relation" in html
        assert html.count(f"for account {account.pk} (") == 2
        assert f"/admin/orders/account/{account.pk}/change/" in html, "what the root holds is a link"
        assert "blocks 5" in html


def test_the_command_draws_the_same_tree_with_the_rows() -> None:
    with staged() as (scene, account):
        text = run("show_locks", "--tree").stdout
        data = run("show_locks", "--json", "--blocked").data
    lines = text.partition("\n\n")[0].splitlines()
    levels = {int(line.lstrip(" │├└").split()[0]): len(line) - len(line.lstrip(" │├└")) for line in lines}
    levels = {pid: width // 2 for pid, width in levels.items()}
    depth = {"psql": 0, "rowlock:worker:7f": 1, "rowlock:cmd:transfer": 2, "rowlock:cmd:recover_tasks": 2}
    assert levels == {scene.pid(name): level for name, level in {**depth, "report": 3, "rowlock:web": 3}.items()}
    forks = sorted(line.lstrip(" │")[0] for line in lines[1:])
    assert forks == sorted("├├└└└"), "two lines have another one below the same session"
    assert f"holds account {account.pk}" in lines[0]
    assert {"table": "orders_account", "id": account.pk} in [lock["row"] for lock in data["locks"]]
    assert (account.pk, scene.pid("psql")) in [(row["id"], row["pid"]) for row in data["rows"]]
    assert {session["pid"] for session in data["sessions"]} == set(levels)


def test_a_workers_session_names_its_task_and_the_row_it_waits_for() -> None:
    task = rows.processing("7f")
    Worker.objects.create(id="7f", hostname="h", pid=1, current_task_id=task.pk)
    with staged() as (scene, _):
        html = drawn()
        work = attribution.lock_page(Snapshot()).behind[scene.pid("rowlock:worker:7f")]
        assert work.task is not None
        assert (work.task.id, work.task.has_attempts_left) == (task.pk, True)
        assert f"/admin/tasks/task/{task.pk}/" in html
        assert "/admin/ops/workers/#worker-7f" in html


def test_a_session_of_the_lab_leads_to_its_run() -> None:
    run_id = LabRun.objects.create(batch="b", pattern="unsafe", plan={}, actor="anna", schema="lab_7f").pk
    with Scene() as scene:
        scene.opened("rowlock:lab:lab_7f").execute("SELECT 1")
        scene.opened("rowlock:lab:runner").execute("SELECT 1")
        html = client_of("Viewers").get(LOCKS).content.decode()
    assert f'href="/admin/ops/lab/{run_id}/"' in html
    assert html.count('href="/admin/ops/lab/"') >= 2


def test_a_row_that_is_on_no_list_is_known_by_its_waiters() -> None:
    """The newest 200 orders are looked at; this one is not among them, and only its queue tells of it."""
    old = Order.objects.create(customer_email="a@example.test")
    Order.objects.bulk_create(Order(customer_email="a@example.test") for _ in range(205))
    with Scene() as scene:
        scene.holding("psql", "UPDATE orders_order SET customer_email = 'b@example.test' WHERE id = %s", [old.pk])
        scene.waiting("one", LOCK_ORDER, [old.pk])
        scene.waiting("two", LOCK_ORDER, [old.pk])
        seen = attribution.lock_page(Snapshot())
        assert seen.behind[scene.pid("psql")].rows == (RowRef(Order, old.pk),)
        waits = {lock.pid: lock.row for lock in seen.seen.locks if not lock.granted}
        assert waits == {scene.pid("one"): RowRef(Order, old.pk), scene.pid("two"): RowRef(Order, old.pk)}


def test_rows_on_the_list_lead_to_the_session_that_holds_them() -> None:
    with staged() as (scene, account):
        html = client_of("Viewers").get(LOCKS).content.decode()
        pid = scene.pid("psql")
        assert f'<a href="#node-{pid}">' in html[html.index('id="held-heading"') :]
        assert html.count(f'id="node-{pid}"') == 1
        assert Account.objects.get().pk == account.pk


def test_every_session_has_one_anchor() -> None:
    """A link from a row leads to #node-<pid>, whether that session keeps somebody waiting or not."""
    with staged() as (scene, _):
        idle = scene.opened("idle")
        idle.execute("SELECT 1")
        html = client_of("Viewers").get(LOCKS).content.decode()
        for pid in (idle.info.backend_pid, scene.pid("report")):
            assert html.count(f'id="node-{pid}"') == 1


def test_fifty_in_a_queue_are_drawn_once_each() -> None:
    """Each of the fifty waits for all before it; a tree of every path would never end, a recursive template neither."""
    with queue_for_one_row(waiters=50, bystanders=40) as scene:
        client = client_of("Lock administrators")
        html = client.get(LOCKS, headers={"HX-Request": "true"}).content.decode()
        parents = Nesting(html[html.index('<ul id="lock-tree"') : html.index("</section>")]).parents
        assert len(parents) == 51
        assert "blocks 50" in html
        assert parents[scene.pid("waiter 49")] == scene.pid("waiter 48")
