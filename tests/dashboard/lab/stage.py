"""A staged run of the lab: its row says that it is at work, and a test plays its workers."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.utils import timezone

from dashboard.lab import runner, schema
from dashboard.lab.worker import CREATE_LEDGER, Plan
from dashboard.models import LabRun
from tests.commands import database_url
from tests.dashboard.scenes import PATIENCE, Scene
from tests.sessions import session
from tests.tasks import rows

FILL = "INSERT INTO orders_order (id, customer_email, shipped_at) VALUES (1, 'a@example.test', now())"
SESSION = "INSERT INTO lab_ledger (kind, worker, item) VALUES ('start', %s, NULL), ('session', %s, %s)"


class Stage(Scene):
    """Sessions of one run, in its schema, each the worker of a number."""

    def __init__(self, run: LabRun, control: psycopg.Connection) -> None:
        super().__init__()
        self.run, self.control = run, control

    def worker(self, number: int) -> str:
        options = f"{PATIENCE} -c search_path={self.run.schema}"
        conn = self.enter_context(session(f"rowlock:lab:{self.run.schema}", options=options))
        self.sessions[str(number)] = conn
        self.control.execute(SESSION, [number, number, conn.info.backend_pid])
        return str(number)


@contextmanager
def staged() -> Iterator[Stage]:
    """A run that its row says to be at work, and its schema."""
    with psycopg.connect(database_url(), autocommit=True) as control, schema.schema(control, schema.new_name()) as name:
        control.execute(runner.SEEN_ALONE, {"schema": name})
        control.execute(CREATE_LEDGER)
        control.execute(FILL)
        plan = Plan("double_checked", workers=2, items=1).as_dict()
        columns = {"state": "running", "schema": name, "task_id": rows.ready().pk, "started_at": timezone.now()}
        run = LabRun.objects.create(batch="b", pattern="double_checked", plan=plan, actor="anna", **columns)
        with Stage(run, control) as stage:
            yield stage
            control.execute("RESET search_path")
