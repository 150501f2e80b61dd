"""Eight overlapping runs over a thousand shipped orders and a real server: each customer gets one e-mail."""

import json
from collections import Counter

import pytest
from django.db import connection

from orders.models import Order
from orders.shipping import Mode
from tests import commands
from tests.orders import orders
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
RUNS, ORDERS = 8, 1000
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"


def start_together(url: str, mode: str) -> list[dict]:
    """The reports of so many processes, which begin at the same moment: when the table is no longer locked."""
    with session() as gate:
        gate.execute("LOCK TABLE orders_order IN ACCESS EXCLUSIVE MODE")
        runs = [
            commands.start("send_shipped_emails", "--until-empty", "--json", "--mode", mode, env={"EMAIL_URL": url})
            for _ in range(RUNS)
        ]

        def all_of_them_wait() -> bool:
            with connection.cursor() as cursor:
                cursor.execute(BLOCKED, [gate.info.backend_pid])
                return cursor.fetchone()[0] == RUNS

        wait_until(all_of_them_wait, seconds=60)
        gate.rollback()
    return [report_of(run) for run in runs]


def report_of(run) -> dict:
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    return json.loads(out)


@pytest.mark.parametrize("mode", Mode.values)
def test_a_thousand_mails_none_twice_none_too_many_and_all_share_the_work(smtp, mode):
    smtp.seconds = 0.002
    unshipped, mailed = orders.placed(50), orders.mailed(50)
    shipped = orders.shipped(ORDERS)
    reports = start_together(smtp.url, mode)
    assert len(smtp.accepted) == ORDERS
    assert smtp.duplicates() == 0
    told = {int(mail.subject.split()[2]) for mail in smtp.accepted}
    assert told == {order.pk for order in shipped}
    assert Counter(orders.states()) == {"none": len(unshipped), "sent": ORDERS + len(mailed)}
    assert Order.objects.filter(pk__in=told, email_attempts=1).count() == ORDERS
    assert sum(report["sent"] for report in reports) == ORDERS
    assert all(report["sent"] > ORDERS / RUNS / 4 for report in reports), [report["sent"] for report in reports]
    for report in reports:
        parts = ("sent", "unknown", "skipped_locked", "already_done", "failed")
        assert report["candidates"] == sum(report[part] for part in parts)
        assert report["skipped_locked"] == report["failed"] == 0
    print([report["sent"] for report in reports], "lost", sum(report["already_done"] for report in reports))
