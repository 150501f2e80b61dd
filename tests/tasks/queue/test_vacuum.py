"""The storage parameters of the queue, on a table with many finished tasks."""

from tests import databases

FINISHED = """
INSERT INTO tasks_task (task_path, status, attempt, finished_at)
SELECT 'a', 'COMPLETED', 1, now() FROM generate_series(1, 20000)
"""
READY = "INSERT INTO tasks_task (task_path) SELECT 'a' FROM generate_series(1, 50)"
PAGES = "SELECT id, (ctid::text::point)[0] AS page FROM tasks_task WHERE id %% %s = 0 ORDER BY id"
CLAIMED = "UPDATE tasks_task SET status = 'PROCESSING', claimed_by = 'worker-1', attempt = 1 WHERE id %% %s = 0"
DONE = "UPDATE tasks_task SET status = 'COMPLETED', finished_at = now() WHERE status = 'READY'"


def test_the_index_of_the_claim_is_cleaned_however_large_the_table_is(template_url):
    """By itself VACUUM passes indexes over while dead rows are on less than 2 % of the pages, here 2 of 290."""
    with databases.copy_of(template_url) as database:
        database.rows("ALTER TABLE tasks_task SET (autovacuum_enabled = off)")
        database.rows(FINISHED)
        database.rows("VACUUM tasks_task")
        database.rows(READY)
        database.rows(DONE)
        told = []
        database.connection.add_notice_handler(lambda notice: told.append(notice.message_primary))
        database.rows("VACUUM (VERBOSE) tasks_task")
    report = next(text for text in told if "tasks_task" in text and "index scan" in text)
    assert "index scan needed" in report


def test_a_claim_changes_only_the_page_of_its_task(template_url):
    """The new version finds room there, so fewer pages are written to the log after a checkpoint."""
    apart = 25  # two or three on each page
    with databases.copy_of(template_url) as database:
        for _ in range(20):
            database.rows(READY)
        before = database.rows(PAGES, apart)
        database.rows(CLAIMED, apart)
        assert len({row.page for row in before}) > 10
        assert database.rows(PAGES, apart) == before
