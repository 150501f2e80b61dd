"""Machines whose clocks are an hour wrong (fault F12): only the database's clock decides, and only it is written."""

import shutil
from datetime import timedelta
from pathlib import Path

from tests import skew
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

HOUR = 3600
TIMES = """
SELECT bool_and(abs(extract(epoch FROM clock_timestamp() - moment)) < 120) FROM tasks_task, LATERAL (
    VALUES (created_at), (started_at), (finished_at)) AS written (moment) WHERE status = 'COMPLETED'
"""
BEATS = "SELECT bool_and(abs(extract(epoch FROM clock_timestamp() - heartbeat_at)) < 120) FROM tasks_worker"
# Its tasks wait in a paused queue, so that the others are all that completes.
EVERY_SECOND = """
WITH held AS (INSERT INTO tasks_queue (name, paused) VALUES ('held', true))
INSERT INTO tasks_schedule (name, task_path, queue_name, every_seconds) VALUES ('s', %s, 'held', 1)
"""
TICKS = "SELECT at, abs(extract(epoch FROM made_at - at)) < 60 AS is_prompt FROM tasks_tick ORDER BY at"


def test_f12_clocks_an_hour_apart_change_neither_who_lives_nor_what_is_due(
    database, ledger, start_worker, tmp_path: Path
):
    shutil.copy(skew.__file__, tmp_path / "sitecustomize.py")
    ahead, behind = (
        start_worker(PYTHONPATH=tmp_path, SKEW_SECONDS=seconds, ROWLOCK_LEASE_SECONDS=5) for seconds in (HOUR, -HOUR)
    )
    present = "SELECT count(*) FROM tasks_worker WHERE presence_epoch IS NOT NULL"
    wait_until(lambda: database.value(present) == 2, seconds=120)
    database.rows(EVERY_SECOND, handlers.quick.module_path)
    [later] = database.enqueue(handlers.work, run_after_seconds=HOUR / 2)
    lasting = database.enqueue(handlers.work, 6, count=2)  # for longer than a lease
    soon = database.enqueue(handlers.tell_the_time, count=20)
    wait_until(lambda: database.statuses()["COMPLETED"] == len(lasting + soon), seconds=120)

    told = database.rows(
        "SELECT DISTINCT round(return_value::text::float8 / 3600) AS hours FROM tasks_task WHERE id = ANY(%s)", soon
    )
    assert {row.hours for row in told} <= {-1, 1}, "their clocks were right: nothing was tried"
    assert told
    assert database.task(later).status == "READY"
    assert [len(ledger.effects(task_id)) for task_id in lasting] == [1, 1]
    assert database.rows("SELECT * FROM tasks_worker WHERE stopped_at IS NOT NULL") == []
    ticks = database.rows(TICKS)
    assert [tick.at - ticks[0].at for tick in ticks] == [timedelta(seconds=number) for number in range(len(ticks))]
    assert (len(ticks) >= 5, all(tick.is_prompt for tick in ticks)) == (True, True)
    assert database.value(TIMES)
    assert database.value(BEATS)
    assert [ahead.stop(), behind.stop()] == [0, 0]
