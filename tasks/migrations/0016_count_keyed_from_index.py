"""The index of the ordering keys carries the queue and the time too, so that tasks with a key are counted from it.

From the table, 10,000 tasks with a key were as many rows read at random, at each look. Only tasks with a key are written
to it. Made CONCURRENTLY: it takes longer and waits for every open transaction, but nobody waits for it. One that was
broken off may be run again.
"""

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models

WITHOUT = migrations.RunSQL.noop


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("tasks", "0015_find_who_did_it")]

    operations = [
        # A short limit, which keeps a migration from holding up others, would end a wait that holds up nobody.
        migrations.RunSQL("SET lock_timeout = 0", WITHOUT),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS tasks_task_keyed", WITHOUT),
        AddIndexConcurrently(
            model_name="task",
            index=models.Index(
                condition=models.Q(("ordering_key__isnull", False), ("status__in", ("READY", "PROCESSING"))),
                fields=["ordering_key", "id"],
                include=("queue_name", "run_after"),
                name="tasks_task_keyed",
            ),
        ),
        RemoveIndexConcurrently(model_name="task", name="tasks_task_key_order"),
        migrations.RunSQL("RESET lock_timeout", WITHOUT),
    ]
