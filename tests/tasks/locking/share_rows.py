"""One of several processes that share rows: `python -m tests.tasks.locking.share_rows START` prints its report.

START is `own` (each process starts at a place of its own, as it should be) or `same` (the article's plain loop: all go
down one list in the order of its keys). It begins when nobody holds the advisory lock BARRIER exclusively any more.
"""

import json
import sys
from importlib import import_module

import django
from django.db import connection

BARRIER = 20_261_120


def main(start: str) -> dict[str, int]:
    from orders.models import Order

    module = import_module("tasks.locking.double_checked")
    if start == "same":
        module.choose_place, module.LOST_IN_A_ROW = (lambda keys: 0), sys.maxsize
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock_shared(%s)", [BARRIER])
        cursor.execute("SELECT pg_advisory_unlock_shared(%s)", [BARRIER])
    unmailed = Order.objects.filter(shipped_at__isnull=False, shipped_email_sent=False)
    report = module.double_checked(unmailed).each(mark, max_rounds=module.UNTIL_EMPTY)
    return {"done": report.done, "lost_races": report.lost_races, "queries": report.queries}


def mark(order) -> None:
    type(order).objects.filter(pk=order.pk).update(shipped_email_sent=True)


if __name__ == "__main__":
    django.setup()
    print(json.dumps(main(sys.argv[1])))
