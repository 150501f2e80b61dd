"""The index of what was not successful carries the queue and the status too, so that failed tasks are counted from it.

From the table, each of 10,000 failed ones among ten million was a page read at random, once a second. Made CONCURRENTLY:
it takes longer and waits for every open transaction, but nobody waits for it. One that was broken off may be run again.
"""

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models

WITHOUT = migrations.RunSQL.noop


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("tasks", "0011_stop_worker_and_keep_audit")]

    operations = [
        # A short limit, which keeps a migration from holding up others, would end a wait that holds up nobody.
        migrations.RunSQL("SET lock_timeout = 0", WITHOUT),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS tasks_task_unsuccessful_rows", WITHOUT),
        AddIndexConcurrently(
            model_name="task",
            index=models.Index(
                condition=models.Q(("status__in", ("FAILED", "CANCELLED"))),
                fields=["id"],
                include=("queue_name", "status"),
                name="tasks_task_unsuccessful_rows",
            ),
        ),
        RemoveIndexConcurrently(model_name="task", name="tasks_task_unsuccessful"),
        migrations.RunSQL("RESET lock_timeout", WITHOUT),
    ]
