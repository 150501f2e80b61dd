"""From a row to the session that holds it: orders, accounts and tasks lead to its place on the page of locks."""

import pytest
from django.contrib.auth.models import User

from orders.models import Account, Order
from tasks.models import Worker
from tests.dashboard.scenes import LOCK_ORDER, Scene
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
LOCKS = "/admin/ops/locks/"
HOLD = "SELECT 1 FROM {} WHERE id = %s FOR UPDATE"


def test_orders_accounts_and_tasks_lead_to_their_holder() -> None:
    held = {
        "/admin/orders/order/": Order.objects.create(customer_email="a@example.test"),
        "/admin/orders/account/": Account.objects.create(owner=User.objects.create_user("owner")),
        "/admin/tasks/task/": rows.ready(),
    }
    client = client_of("Viewers")
    with Scene() as scene, rows.living_worker(task_paths=[rows.NOTHING]):
        for row in held.values():
            scene.holding("psql <i>", HOLD.format(row._meta.db_table), [row.pk])
        link = f'<a href="{LOCKS}#node-{scene.pid("psql <i>")}">'
        for page in held:
            html = client.get(page).content.decode()
            assert link in html, page
            assert "psql <i>" not in html
        detail = client.get(f"/admin/tasks/task/{held['/admin/tasks/task/'].pk}/").content.decode()
        assert link in detail
        assert f'id="node-{scene.pid("psql <i>")}"' in client.get(LOCKS).content.decode()


def test_a_running_task_that_waits_leads_to_its_session() -> None:
    order = Order.objects.create(customer_email="a@example.test")
    with Scene() as scene, rows.living_worker("7f") as worker_id:
        task = rows.processing(worker_id)
        Worker.objects.filter(pk=worker_id).update(current_task_id=task.pk, current_since=task.started_at)
        scene.holding("psql", LOCK_ORDER, [order.pk])
        scene.waiting("rowlock:worker:7f", LOCK_ORDER, [order.pk])
        html = client_of("Viewers").get(f"/admin/tasks/task/{task.pk}/").content.decode()
        assert f'<a href="{LOCKS}#node-{scene.pid("rowlock:worker:7f")}">' in html
