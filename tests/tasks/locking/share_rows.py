"""One of several processes that share rows: `python -m tests.tasks.locking.share_rows START CREW` prints its report.

START is `own` (each process starts at a place of its own, as it should be) or `same` (the article's plain loop: all go
down one list in the order of its keys). It begins when nobody holds the advisory lock BARRIER exclusively any more.
It keeps its first row until CREW processes hold one each; 0: it waits for nobody.
"""

import json
import sys
from importlib import import_module

import django
from django.db import connection

from tests.waiting import wait_until

BARRIER = 20_261_120
MEETING = BARRIER + 1
# Each has one of these locks from its first row on.
AT_THE_MEETING = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND objid = %s
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def main(start: str, crew: int) -> dict[str, int]:
    from orders.models import Order

    module = import_module("tasks.locking.double_checked")
    choose_place, places = module.choose_place, []
    if start == "same":
        module.LOST_IN_A_ROW = sys.maxsize

    def choose(keys) -> int:
        places.append(0 if start == "same" else choose_place(keys))
        return places[-1]

    def mark(order) -> None:
        if crew and not marked:
            meet(crew)
        marked.append(order.pk)
        type(order).objects.filter(pk=order.pk).update(shipped_email_sent=True)

    module.choose_place, marked = choose, []
    ask("SELECT pg_advisory_lock_shared(%s)", BARRIER)
    ask("SELECT pg_advisory_unlock_shared(%s)", BARRIER)
    unmailed = Order.objects.filter(shipped_at__isnull=False, shipped_email_sent=False)
    report = module.double_checked(unmailed).each(mark, max_rounds=module.UNTIL_EMPTY)
    numbers = {"done": report.done, "lost_races": report.lost_races, "queries": report.queries}
    return {**numbers, "first_place": places[0]}


def meet(crew: int) -> None:
    ask("SELECT pg_advisory_lock_shared(%s)", MEETING)
    wait_until(lambda: ask(AT_THE_MEETING, MEETING) >= crew, seconds=60)


def ask(statement: str, number: int):
    with connection.cursor() as cursor:
        cursor.execute(statement, [number])
        return cursor.fetchone()[0]


if __name__ == "__main__":
    django.setup()
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
