"""Outside lockers: other work that locks and changes the same rows while a pattern runs."""

import random
import time

from django.db import connection, transaction

from dashboard.lab.bench import Bench
from dashboard.lab.patterns.registered import item_of
from dashboard.lab.subjects import Subject
from tasks.database import fetch

HOLD_SECONDS = 0.01
PAUSE_SECONDS = 0.02
IS_OVER = "SELECT EXISTS (SELECT FROM lab_ledger WHERE kind = 'over') AS over"


def touch_until_told(bench: Bench, rows: Subject) -> None:
    """Lock one row after the other, change it, and hold it a moment, until the run is over."""
    chance = random.Random(f"{bench.plan.seed}/{bench.number}")  # noqa: S311  # nosec B311  pauses, no secret
    while not fetch(connection, IS_OVER)[0]["over"]:
        with transaction.atomic():
            [row] = fetch(connection, rows.touch)
            time.sleep(HOLD_SECONDS * chance.random())
        bench.ledger.note("touch", item_of(row["id"]))
        time.sleep(PAUSE_SECONDS * chance.random())
