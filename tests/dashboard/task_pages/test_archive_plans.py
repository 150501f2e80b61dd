"""However large the archive is, a search reads the rows that it shows, and only months that can match."""

from datetime import UTC, datetime
from typing import NamedTuple

import psycopg
import pytest

from dashboard.task_pages.archive import ArchiveFilter, Cursor
from tasks.models import ArchivedTask
from tests import databases
from tests.tasks.plans import explain

MONTHS, ROWS, PAGE = 3, 15_000, 51
FILL = (
    f"""SELECT rowlock_make_archive(('2026-01-01'::date + n * interval '1 month')::date)
    FROM generate_series(0, {MONTHS} - 1) AS n""",
    f"""INSERT INTO tasks_archive (id, task_path, queue_name, priority, args, kwargs, status, version, created_at,
        run_after, finished_at, attempt, max_attempts, ordering_key, unique_key)
    SELECT n, 'a' || n % 20, 'q', 0, '[]', '{{}}', CASE WHEN n % 100 = 0 THEN 'FAILED' ELSE 'COMPLETED' END, 3,
        at, at, at, 1, 5, CASE WHEN n % 100 = 1 THEN 'k' || n % 7 END, CASE WHEN n % 100 = 2 THEN 'u' || n END
    FROM (SELECT n, '2026-01-01T00:00Z'::timestamptz + n * interval '8 minutes' AS at
        FROM generate_series(1, {ROWS}) AS n) AS rows""",
    "VACUUM ANALYZE tasks_archive",
)
INDEXED = {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
MIDDLE = Cursor(datetime(2026, 2, 10, tzinfo=UTC), 7_000)


class Search(NamedTuple):
    """Conditions, the rows that the search may read, and the months that it may open."""

    chosen: ArchiveFilter
    most: int = PAGE
    months: int = MONTHS
    before: Cursor | None = None


SEARCHES = {
    "everything": Search(ArchiveFilter()),
    "a later page": Search(ArchiveFilter(), before=MIDDLE, months=2, most=PAGE + 1),
    "an id": Search(ArchiveFilter(id="8000"), most=1),
    "a function": Search(ArchiveFilter(task="a7")),
    "a function within a time": Search(
        ArchiveFilter(task="a7", since="2026-02-03T00:00Z", until="2026-02-04T00:00Z"), months=1
    ),
    "a key": Search(ArchiveFilter(key="k3")),
    "a function that is not there": Search(ArchiveFilter(task="nothing"), most=0),
    "failures": Search(ArchiveFilter(status="FAILED")),
    "a time": Search(ArchiveFilter(since="2026-02-03T00:00Z", until="2026-02-04T00:00Z"), months=1),
}  # fmt: skip


@pytest.fixture(scope="module")
def page(template_url):
    with databases.copy_of(template_url) as database:
        for statement in FILL:
            database.connection.execute(statement)
        with psycopg.connect(database.url, autocommit=True) as conn:
            yield conn


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_reads_what_it_shows(page, name):
    search = SEARCHES[name]
    for tasks in search.chosen.querysets(search.before, PAGE):
        assert_reads(page, tasks, search)


def test_an_id_is_found_in_any_month(page):
    assert_reads(page, ArchivedTask.objects.filter(pk=8_000)[:1], SEARCHES["an id"])


def assert_reads(page, tasks, search):
    plan = explain(page, psycopg.ClientCursor(page).mogrify(*tasks.query.sql_with_params()), {})
    months = {node.node["Relation Name"] for node in plan if "Relation Name" in node.node}
    assert len(months) <= search.months
    assert {scan for month in months for scan in plan.scans(month)} <= INDEXED
    assert sum(plan.rows_read(month) for month in months) <= search.most
    # Reading a whole index for one of its rows shows here alone.
    assert plan.node["Shared Hit Blocks"] + plan.node["Shared Read Blocks"] <= 20 + 2 * search.most
