"""One idle worker is on duty, whom enqueuers wake. When it goes to work for long, another one must know."""

import psycopg

from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

ON_DUTY = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
  AND classid::bigint = (hashtext('rowlock:duty')::bigint & 4294967295)
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def test_who_goes_to_work_for_long_wakes_the_others(database, ledger, start_worker):
    start_worker()
    wait_until(lambda: database.value(ON_DUTY) == 1)
    with psycopg.connect(database.url, autocommit=True) as idle:
        idle.execute("LISTEN rowlock_public")
        [task_id] = database.enqueue(handlers.work, 1.0)
        heard = [notify.payload for notify in idle.notifies(timeout=20, stop_after=2)]
    assert "duty" in heard
    assert database.wait_for(task_id, "COMPLETED").attempt == 1
