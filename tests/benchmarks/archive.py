"""The archive: Rowlock's claim of one task beside many archived ones, and how long pages and the API take.

`--finished 100000000` archives so many; a tenth as many finished tasks are in the queue's own table.
`python -m tests.benchmarks.archive URL` measures the pages of a database.
"""

import json
import subprocess
import sys
import time
from functools import partial

import psycopg

from tests import databases
from tests.benchmarks.bench import Bench
from tests.benchmarks.growth import CLAIMS, EMPTY, Grown, compared
from tests.benchmarks.pages import set_up
from tests.benchmarks.report import Part, percentile, summaries, waits
from tests.benchmarks.subject import Rowlock
from tests.databases import ROOT

ARCHIVED = 10_000_000
MONTHS, PAGES = 24, 40
GOAL, GOAL_MS = 1 / 1.05, 100.0
MAKE_MONTHS = """
SELECT rowlock_make_archive(('2024-01-01'::date + n * interval '1 month')::date) FROM generate_series(0, %s - 1) AS n
"""
# One in a hundred has failed, with an attempt; one in ten has a key, of which there are a thousand.
FILL_MONTH = """
INSERT INTO tasks_archive (id, task_path, queue_name, priority, args, kwargs, status, version, created_at, run_after,
    started_at, finished_at, finished_by, attempt, max_attempts, ordering_key, attempts)
SELECT n, 'shop.tasks.task_' || n %% 20, 'queue_' || n %% 5, 0, jsonb_build_array(n), '{}',
    CASE WHEN n %% 100 = 0 THEN 'FAILED' ELSE 'COMPLETED' END, 3, at, at, at, at, 'w', 1, 5,
    CASE WHEN n %% 10 = 1 THEN 'key_' || n %% 9973 END,
    CASE WHEN n %% 100 = 0 THEN '[{"id": 1, "number": 1, "worker_id": "w", "outcome": "failed", "traceback": "x",
        "exception_class": "shop.CardDeclined", "finished_at": "2024-01-01T00:00:00+00:00"}]'::jsonb END
FROM (
    SELECT n, '2024-01-01T00:00Z'::timestamptz + %(month)s::int * interval '1 month'
        + (n - %(lowest)s::bigint) * interval '28 days' / (1 + %(highest)s::bigint - %(lowest)s::bigint) AS at
    FROM generate_series(%(lowest)s::bigint, %(highest)s::bigint) AS n
) AS row
"""
# One in a hundred has failed, with an attempt.
FILL_QUEUE = """
INSERT INTO tasks_task (task_path, queue_name, status, attempt, created_at, run_after, started_at, finished_at,
    finished_by, args)
SELECT 'shop.tasks.task_' || n %% 20, 'queue_' || n %% 5, CASE WHEN n %% 100 = 0 THEN 'FAILED' ELSE 'COMPLETED' END,
    1, at, at, at, at, 'w', jsonb_build_array(n)
FROM (SELECT n, now() - n * interval '0.1 seconds' AS at FROM generate_series(1, %s) AS n) AS row
"""
FILL_ATTEMPTS = """
INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, started_at, finished_at, exception_class, traceback)
SELECT id, 1, 'w', 'failed', started_at, finished_at, 'shop.CardDeclined', 'x' FROM tasks_task WHERE status = 'FAILED'
"""
LIST = "/admin/tasks/task/archive/"
SEARCHES = {
    "newest": f"{LIST}",
    "two years back": f"{LIST}?before=2024-01-20T00%3A00%3A00%2B00%3A00%2F1",
    "a function": f"{LIST}?task=shop.tasks.task_7",
    "a function on a day": f"{LIST}?task=shop.tasks.task_7&since=2024-08-03T00%3A00Z&until=2024-08-04T00%3A00Z",
    "a key": f"{LIST}?key=key_41",
    "failures": f"{LIST}?status=FAILED",
    "failures of a function": f"{LIST}?status=FAILED&task=shop.tasks.task_0",
    "nothing": f"{LIST}?task=shop.tasks.nothing",
    "no such key": f"{LIST}?key=nobody",
    "an id": f"{LIST}?id=%d",
    "no such id": f"{LIST}?id=999999999999",
    "one task": "/admin/tasks/task/%d/",
    "overview": "/admin/",
    "tasks": "/admin/tasks/task/",
    "tasks of a function": "/admin/tasks/task/?task=shop.tasks.task_7",
    "stuck": "/admin/ops/stale/",
    "locks": "/admin/ops/locks/",
    "failures by kind": "/admin/ops/failures/",
    "charts of a week": "/admin/ops/charts/?span=7d",
    "audit as CSV": "/admin/ops/audit/?format=csv",
    "palette, an id": "/admin/ops/palette/?q=%d",
    "metrics": "/metrics",
    "API: summary": "/api/v1/summary",
    "API: tasks of a function": "/api/v1/tasks?task=shop.tasks.task_7",
    "API: one task": "/api/v1/tasks/%d",
    "API: an id": "/api/v1/find?q=%d",
    "API: failures": "/api/v1/failures",
    "API: preview of a bulk run": "/api/v1/tasks/bulk/requeue?status=FAILED",
}


def run(scene: Bench) -> Part:
    part = scene.part("archive", "Archive: a claim and the pages beside archived tasks")
    number = ARCHIVED if scene.options.finished is None else scene.options.finished
    empty = Rowlock(scene.server.url, scene.pipe)
    empty.prepare()
    empty.empty()
    tables = []
    for place, name in enumerate((EMPTY, f"{number:,} archived, {number // 10:,} finished")):
        grown = Grown(scene, 200 + place, name)
        databases.create(grown.url, template=empty.url)
        tables.append(grown)
    fill(tables[1], number)
    title = "Claims of one task a second, none waits for the disk"
    claims = min(CLAIMS, scene.tasks(CLAIMS))
    figures = scene.alternate(title, {table.label: partial(table.claim, claims) for table in tables}, scene.rounds())
    line = [sys.executable, "-m", "tests.benchmarks.archive", tables[1].url, str(number)]
    times = json.loads(
        subprocess.run(line, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    part.tables = [
        compared(title, figures),
        waits(f"Pages beside {number:,} archived tasks of {MONTHS} months and {number // 10:,} finished ones", times),
    ]
    part.figures = {title: figures, "pages": summaries(times)}
    slow = {name: 1000 * percentile(values, 0.95) for name, values in times.items()}
    part.notes = [
        f"Goals: a claim at {GOAL:.2f} of the empty table, p95 of a page below {GOAL_MS:.0f} ms; "
        + ", ".join(f"{name}: {value:.0f} ms" for name, value in slow.items())
        + ".",
        *scene.excuses.values(),
    ]
    return part


def fill(grown: Grown, number: int) -> None:
    grown.execute(MAKE_MONTHS, MONTHS)
    share = number // MONTHS
    for month in range(MONTHS):
        ids = {"lowest": month * share + 1, "highest": number if month == MONTHS - 1 else (month + 1) * share}
        with psycopg.connect(grown.url, autocommit=True) as connection:
            connection.execute(FILL_MONTH, {**ids, "month": month})
        grown.scene.say(f"  {ids['highest']:,} of {number:,}")
    grown.execute(FILL_QUEUE, number // 10)
    grown.execute(FILL_ATTEMPTS)
    grown.execute("VACUUM ANALYZE")


def secret_of_a_token() -> str:
    """A new token of the person who is logged in; it needs Django."""
    from dashboard.api import tokens
    from tasks.support.audit import Who
    from tests.people import person

    return tokens.create("benchmark", person(username="root", is_superuser=True), Who("benchmark", "command"))


def measured(url: str, number: int) -> dict[str, list[float]]:
    """Seconds of each page, asked in turn, after a first round that is not counted."""
    client = set_up(url)
    headers = {"Authorization": f"Bearer {secret_of_a_token()}"}
    times: dict[str, list[float]] = {name: [] for name in SEARCHES}
    for turn in range(PAGES + 1):
        for name, path in SEARCHES.items():
            asked = path % (1 + turn * number // (PAGES + 1)) if "%d" in path else path
            began = time.perf_counter()
            answer = client.get(asked, headers=headers if asked.startswith("/api/") else None)
            seconds = time.perf_counter() - began
            assert answer.status_code == 200, (asked, answer.status_code)
            if turn:
                times[name].append(seconds)
    return times


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
