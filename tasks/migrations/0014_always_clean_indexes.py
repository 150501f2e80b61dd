"""VACUUM always cleans the indexes of the queue.

By itself it passes them over while dead rows are on less than 2 % of a table's pages. Beside ten million finished tasks
that is everything that tens of thousands of new ones leave behind, and all of it stood in the index of the claim, at the
beginning of the line: a claim of one task read 124 pages for each step of its walk instead of four.
"""

from django.db import migrations

ALWAYS = "ALTER TABLE tasks_task SET (vacuum_index_cleanup = on)"
WHEN_IT_SEEMS_WORTHWHILE = "ALTER TABLE tasks_task RESET (vacuum_index_cleanup)"


class Migration(migrations.Migration):
    dependencies = [("tasks", "0013_throughput_slots")]

    operations = [migrations.RunSQL(ALWAYS, WHEN_IT_SEEMS_WORTHWHILE)]
