"""Eight overlapping runs over hundreds of shipped orders and a real server: each customer gets one e-mail."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from orders.models import Order
from orders.shipping import Mode
from tests import commands
from tests.orders import orders
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
RUNS, ORDERS = 8, 320
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"


def start_together(folder: Path, url: str, mode: str) -> list[dict]:
    """The reports of so many processes, which begin at the same moment: when the table is no longer locked."""
    command = ["send_shipped_emails", "--until-empty", "--json", "--mode", mode]
    variables = {"DATABASE_URL": commands.database_url(), "EMAIL_URL": url, "PYTHONPATH": str(settings.BASE_DIR)}
    argv = [sys.executable, "-m", "tests.forks", str(RUNS), *command]
    pipes = {"stderr": subprocess.PIPE, "text": True}
    with session() as gate:
        gate.execute("LOCK TABLE orders_order IN ACCESS EXCLUSIVE MODE")
        mother = subprocess.Popen(argv, cwd=folder, env={**os.environ, **variables}, **pipes)

        def all_of_them_wait() -> bool:
            with connection.cursor() as cursor:
                cursor.execute(BLOCKED, [gate.info.backend_pid])
                return cursor.fetchone()[0] == RUNS

        wait_until(all_of_them_wait, seconds=60)
        gate.rollback()
    _, errors = mother.communicate(timeout=120)
    assert mother.returncode == 0, errors
    return [json.loads((folder / str(number)).read_text()) for number in range(RUNS)]


@pytest.mark.parametrize("mode", Mode.values)
def test_hundreds_of_mails_none_twice_none_too_many_and_all_share_the_work(smtp, mode, tmp_path):
    smtp.seconds = 0.002
    unshipped, mailed = orders.placed(50), orders.mailed(50)
    shipped = orders.shipped(ORDERS)
    reports = start_together(tmp_path, smtp.url, mode)
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
