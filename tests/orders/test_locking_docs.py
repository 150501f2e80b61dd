"""docs/locking.md: every piece of code on the page runs, and does what the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from orders.models import Order
from tests.databases import ROOT, QueueDatabase
from tests.orders import orders

PAGE = (ROOT / "docs" / "locking.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
TUTORIAL = ("parcels/tasks.py", "parcels/admin.py", "parcels/management/commands/notify_parcels.py")


class TestPieces:
    pytestmark = pytest.mark.django_db(transaction=True)

    def run(self, *names: str) -> dict[str, Any]:
        """The pieces one after the other, in one namespace; what was sent is in `sent`."""
        sent: list[Order] = []
        space: dict[str, Any] = {"Order": Order, "transaction": transaction, "send_email": sent.append, "sent": sent}
        for name in names:
            exec(BLOCKS[name], space)
        return space

    def test_the_plain_form(self):
        orders.placed(2)
        due = orders.shipped(3)
        assert self.run("inline")["sent"] == due
        assert not Order.objects.to_mail().exists()

    @pytest.mark.parametrize("name", ["helper", "batched"])
    def test_the_forms_that_report(self, name):
        orders.shipped(3)
        criteria = "unmailed = Order.objects.filter(shipped_at__isnull=False, shipped_email_sent=False)"
        assert criteria in BLOCKS["inline"]
        BLOCKS["criteria"] = criteria
        assert self.run("criteria", name)["report"].done == 3
        assert not Order.objects.to_mail().exists()

    def test_the_form_without_locks(self):
        orders.shipped(customer_email="Anna@Example.test")
        BLOCKS["criteria"] = "unmailed = Order.objects.filter(shipped_email_sent=False)"
        assert self.run("criteria", "idempotent")["report"].done == 1
        assert Order.objects.get().customer_email == "anna@example.test"


class TestTutorial:
    @pytest.fixture
    def app(self, tmp_path: Path) -> Path:
        for name in ("parcels/models.py", *TUTORIAL):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(BLOCKS[name])
        for folder in ("", "management", "management/commands"):
            (tmp_path / "parcels" / folder / "__init__.py").touch()
        return tmp_path

    def manage(self, app: Path, database: QueueDatabase, *argv: str) -> str:
        environment = {
            **os.environ,
            "DATABASE_URL": database.url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "ROWLOCK_APPS": "parcels",
            "ROWLOCK_LAB": "1",
            "PYTHONPATH": str(app),
        }
        return subprocess.check_output([sys.executable, "manage.py", *argv], cwd=ROOT, env=environment, text=True)

    def test_it_is_twenty_lines(self):
        lines = [line for name in TUTORIAL for line in BLOCKS[name].splitlines() if line.strip()]
        assert len(lines) == 20

    def test_it_gives_a_command_a_button_and_an_entry_in_the_lab(self, app, database):
        self.manage(app, database, "migrate", "--run-syncdb", "-v0")
        database.rows(
            "INSERT INTO parcels_parcel (phone, has_arrived, is_notified) "
            "SELECT '555-' || n, n > 2, false FROM generate_series(1, 5) AS n"
        )
        report = json.loads(self.manage(app, database, "notify_parcels", "--until-empty", "--limit", "2", "--json"))
        assert (report["done"], report["failed"]) == (2, 0)
        assert self.manage(app, database, "shell", "-v0", "-c", PRESS).split() == ["302", "COMPLETED", "1"]
        assert database.value("SELECT count(*) FROM parcels_parcel WHERE is_notified") == 3
        lab = ["run_pattern", "notify_parcels", "--workers", "2", "--items", "6", "--work-ms", "2", "--json"]
        numbers = json.loads(self.manage(app, database, *lab))
        assert (numbers["processed"], numbers["duplicates"], numbers["is_clean"]) == (6, 0, True)
        assert database.value("SELECT count(*) FROM parcels_parcel") == 5


PRESS = """
from django.contrib.auth.models import User
from django.test import Client
from tasks import testing
from tasks.models import Task

client = Client(headers={"host": "localhost"})
client.force_login(User.objects.create_superuser("admin"))
page = client.get("/admin/parcels/parcel/").content.decode()
assert "Notify parcels" in page and 'data-action="run-pattern"' in page
answer = client.post("/admin/parcels/parcel/patterns/notify_parcels/", {})
testing.run_due()
print(answer.status_code, Task.objects.get().status, Task.objects.get().return_value["done"])
"""
