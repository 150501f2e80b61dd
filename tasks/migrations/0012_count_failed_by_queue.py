"""The index of what was not successful carries the queue and the status too, so that failed tasks are counted from it.

From the table, each of 10,000 failed ones among ten million was a page read at random, once a second. Building it reads
the table once and holds up its writers meanwhile; beside them (CONCURRENTLY) it would wait for every open transaction.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tasks", "0011_stop_worker_and_keep_audit")]

    operations = [
        migrations.AddIndex(
            model_name="task",
            index=models.Index(
                condition=models.Q(("status__in", ("FAILED", "CANCELLED"))),
                fields=["id"],
                include=("queue_name", "status"),
                name="tasks_task_unsuccessful_rows",
            ),
        ),
        migrations.RemoveIndex(model_name="task", name="tasks_task_unsuccessful"),
    ]
