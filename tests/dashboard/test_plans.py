"""However many tasks have finished, what the pages ask again and again reads few rows; the numbers are the tables' own.

With plans made for these values and, as the driver prepares what a session repeats, with plans made for any.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
import pytest

from dashboard import failures, limits, series, stale
from dashboard.attention import alerts
from dashboard.task_pages import listing
from dashboard.views import audit
from tasks.diagnosis import facts, stats
from tasks.operations import search
from tasks.queue import presence
from tasks.queue.throughput import SLOT
from tests import databases
from tests.tasks.plans import Plan, explain

KINDS, ATTEMPTS = 7, 30_000
FINISHED, READY, KEYED, FAILED, HELD, MINUTES, ENTRIES = 60_000, 5_000, 1_000, 600, 500, 20_000, 30_000
LIMITED, LIMITS = 6_000, 200
INDEXED = {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
HALVINGS = 2 * 18  # of so many rows, each read once or twice
PAIRS = 100  # steps over queues and priorities, of which there are fifteen

FILL = (
    f"""INSERT INTO tasks_task (task_path, queue_name, status, attempt, created_at, finished_at)
    SELECT 'a' || n % 20, 'q' || n % 5, CASE WHEN n % 100 = 0 THEN 'FAILED' ELSE 'COMPLETED' END, 1,
        now() - ({FINISHED} - n) * interval '5 seconds', now() FROM generate_series(1, {FINISHED}) AS n""",
    f"""INSERT INTO tasks_task (task_path, queue_name, priority)
    SELECT 'a', 'q' || n % 5, n % 3 FROM generate_series(1, {READY}) AS n""",
    f"""INSERT INTO tasks_task (task_path, queue_name, ordering_key)
    SELECT 'a', 'q' || n % 5, 'k' || n % 50 FROM generate_series(1, {KEYED}) AS n""",
    f"""INSERT INTO tasks_task (task_path, queue_name, concurrency_key, concurrency_limit)
    SELECT 'a', 'q' || n % 5, 'l' || n % {LIMITS}, 2 FROM generate_series(1, {LIMITED}) AS n""",
    f"""INSERT INTO tasks_task (task_path, queue_name, status, attempt, claimed_by, started_at, concurrency_key, slot)
    SELECT 'a', 'q' || n % 5, 'PROCESSING', 1, 'w' || n % 10, now(), CASE WHEN n <= 100 THEN 'l' || n END,
        CASE WHEN n <= 100 THEN 1 END FROM generate_series(1, {HELD}) AS n""",
    """INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class, fingerprint)
    SELECT id, 1, 'w', 'failed', 'E', lpad((id % 7)::text, 12, '0') || ' place'
    FROM tasks_task WHERE status = 'FAILED'""",
    f"""INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class, finished_at, fingerprint)
    SELECT 1, 2, 'w', 'failed', 'E', now() - n * interval '1 minute', lpad((n % {KINDS})::text, 12, '0') || ' place'
    FROM generate_series(1, {ATTEMPTS}) AS n""",
    f"""INSERT INTO tasks_throughput (minute, queue_name, shard)
    SELECT date_trunc('minute', now()) - n * interval '1 minute', 'q', 1 FROM generate_series(0, {MINUTES} - 1) AS n""",
    f"""INSERT INTO tasks_intervention (at, actor, source, action, target)
    SELECT now() - ({ENTRIES} - n) * interval '1 minute', 'anna', 'page', 'cancel', 'task:' || n
    FROM generate_series(1, {ENTRIES}) AS n""",
    "VACUUM ANALYZE",
)


HALF_HOURS = """
INSERT INTO tasks_throughputslot (at, queue_name)
SELECT at, 'q' FROM generate_series(date_bin('30 minutes', now(), 'epoch') - interval '8 days',
    date_bin('30 minutes', now(), 'epoch') - interval '1 hour', interval '30 minutes') AS at
"""


class Asked(NamedTuple):
    """A statement of a page, and how many rows of its table it may look at."""

    statement: str
    most: int
    params: dict[str, Any] = {}
    table: str = "tasks_task"


CAP = {"cap": 50_000}
QUEUES = ["q0", "q1"]
NOW = datetime.now(UTC)
HOUR = {
    "since": NOW - timedelta(hours=1), "until": NOW + timedelta(hours=1), "step": timedelta(minutes=4), "kinds": 2000,
    "sample": 2000, "shown": 50, "text": "", "queue": "", "release": "", "sort": "last", "key": "",
}  # fmt: skip
ASKED = {
    "ready": Asked(stats.UNKEYED_READY, READY + PAIRS, {**CAP, "queue": None}),
    "ready of one queue": Asked(stats.UNKEYED_READY, READY // 5 + PAIRS, {**CAP, "queue": "q1"}),
    "ready with a key": Asked(stats.KEYED_READY, KEYED, CAP),
    "processing": Asked(stats.PROCESSING, HELD, CAP),
    "failed": Asked(stats.FAILED, FAILED, CAP),
    "failed, some of them": Asked(stats.FAILED, 300, {"cap": 300}),
    "groups of failures": Asked(failures.FAILED_GROUPS, 1000, {"window": 1000, "grouped": 500, "groups": 20}),
    "latest failures": Asked(failures.LATEST_FAILURES, 50, {"attempts": 50, "latest": 10}),
    "kinds of failure": Asked(failures.KINDS_OF_FAILURE, 60 + FAILED + 5 * KINDS, HOUR, table="tasks_attempt"),
    "kinds of failure, their tasks": Asked(failures.KINDS_OF_FAILURE, KINDS, HOUR),
    "one kind of failure": Asked(failures.FINGERPRINT, 1, {"key": "000000000003 "}, table="tasks_attempt"),
    "channels that fail": Asked(alerts.FAILING, 1, {"queue": "alerts", "tries": 3, "most": 20}),
    "holders": Asked(presence.KNOWN_IDS, 11, {}),
    "what holders hold": Asked(stale.COUNTS, 100, {"ids": ["w1", "w2"], "cap": 10_000}),
    "queues to choose from": Asked(listing.QUEUE_NAMES, PAIRS, {}),
    "keys of a page": Asked(facts.KEYS, 4 * 20 + 2, {"keys": ["k1", "k2", "k3"], "cap": 1000}),
    "limits of a page": Asked(limits.KEYS, 2 * (limits.SHOWN + 2), {"text": "", "after": "", "most": limits.SHOWN + 1}),
    "limits of the next page": Asked(limits.KEYS, 2 * (limits.SHOWN + 2), {"text": "", "after": "l50", "most": 51}),
    "limits that a text names": Asked(limits.KEYS, LIMITS + 100 + 2, {"text": "nothing", "after": "", "most": 51}),
    "use of limits": Asked(
        limits.LIMITS,
        limits.SHOWN * (LIMITED // LIMITS + 3),
        {"keys": [f"l{number}" for number in range(limits.SHOWN)], "holders": limits.HOLDERS, "cap": limits.CAP},
    ),
    "places in the line": Asked(
        facts.POSITIONS, 2 * READY // 5 + PAIRS, {"queues": QUEUES, "ids": [FINISHED + 5, FINISHED + 6], "cap": 1000}
    ),
    "places in the line, of each queue the first": Asked(
        facts.POSITIONS, 3 * 100 + PAIRS, {"queues": QUEUES, "ids": [FINISHED + 5], "cap": 100}
    ),
    "where a week ago was": Asked(search.CREATED_ID, HALVINGS, {"highest": FINISHED, "age": timedelta(days=7)}),
    "the audit since a time": Asked(
        audit.SINCE_ID, HALVINGS, {"since": "2020-01-01T00:00Z"}, table="tasks_intervention"
    ),
    "actors and actions lately": Asked(audit.RECENT, 1000, {}, table="tasks_intervention"),
    "done in the last hour": Asked(stats.LAST_HOUR, 61, {}, table="tasks_throughput"),
    "finished tasks by function": Asked(
        series.BY_TASK,
        2000 + HALVINGS + 2,
        {"until": "2020-01-01T00:00Z", "since": "2019-01-01T00:00Z", "is_past": True, "sample": 2000, "most": 10},
    ),
    "channels that take nothing": Asked(alerts.FAILING, 10, {"queue": "alerts", "tries": 3, "most": 20}),
    "rates of workers": Asked(stats.RATES, 21, {"ids": ["w1"], "minutes": 20}, table="tasks_throughput"),
}


@pytest.fixture(scope="module")
def filled(template_url):
    with databases.copy_of(template_url) as database:
        for statement in FILL:
            database.connection.execute(statement)
        yield database


@pytest.fixture(scope="module")
def page(filled):
    """A session as one of the web server's, which has the planner's own settings."""
    with psycopg.connect(filled.url, autocommit=True) as conn:
        yield conn


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", ASKED)
def test_a_page_reads_what_it_shows_and_not_what_has_finished(page, name, mode):
    asked = ASKED[name]
    plan = explain(page, asked.statement, asked.params, mode=mode)
    assert plan.scans(asked.table) <= INDEXED
    assert plan.rows_read(asked.table) <= asked.most


@pytest.mark.parametrize("statement", [stats.FAILED, stats.KEYED_READY], ids=["failed", "with a key"])
def test_they_are_counted_without_reading_the_table(page, statement):
    plan = explain(page, statement, CAP)
    assert heap_fetches(plan) == rows_from_table(plan) == 0


@pytest.mark.parametrize("filters", [{"actor": "nobody"}, {"actor": "nobody", "action": "cancel"}], ids=str)
def test_what_a_person_did_is_found_however_much_others_did(page, filters):
    """As the list asks for it: a window of ids that holds all there are."""
    matches = audit.AuditFilter(**filters).queryset().filter(pk__lt=10 * ENTRIES, pk__gte=0).order_by("-pk")[:51]
    plan = explain(page, psycopg.ClientCursor(page).mogrify(*matches.query.sql_with_params()), {})
    assert plan.scans("tasks_intervention") <= INDEXED
    assert plan.rows_read("tasks_intervention") == 0


def rows_from_table(plan: Plan) -> int:
    return sum(node.rows_read() for node in plan if "Plans" not in node.node and node.scans() - {"Index Only Scan"})


def heap_fetches(plan: Plan) -> int:
    return sum(node.node.get("Heap Fetches", 0) for node in plan)


@pytest.mark.parametrize("statement", [series.SERIES, series.BY_QUEUE], ids=["all", "by queue"])
@pytest.mark.parametrize("key", series.SPANS)
def test_charts_read_half_hours_and_the_minutes_after_the_last_of_them(page, key, statement):
    span = series.SPANS[key]
    with page.transaction(force_rollback=True):
        page.execute(HALF_HOURS)
        last = page.execute(series.LAST, {"step": span.step, "slot": SLOT, "until": None}).fetchone()
        since = last[0] - span.step * (span.slots - 1)
        minutes_since = max(since, last[1]) if key != "1h" else since
        params = {"step": span.step, "since": since, "minutes_since": minutes_since, "until": last[2], "most": 10}
        plan = explain(page, statement, params)
    assert plan.scans("tasks_throughput") <= INDEXED
    assert plan.rows_read("tasks_throughput") <= 2 * 60
    assert plan.rows_read("tasks_throughputslot") <= 8 * 48, "no more than there are"
