"""An index for what one person did: without it the audit is read backwards until enough of theirs is found.

That took two seconds beside ten million entries, and then said how far it had got. Made CONCURRENTLY: it takes longer and
waits for every open transaction, but nobody waits for it. One that was broken off may be run again.
"""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

WITHOUT = migrations.RunSQL.noop


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("tasks", "0014_always_clean_indexes")]

    operations = [
        # A short limit, which keeps a migration from holding up others, would end a wait that holds up nobody.
        migrations.RunSQL("SET lock_timeout = 0", WITHOUT),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS tasks_intervention_actor", WITHOUT),
        AddIndexConcurrently(
            model_name="intervention",
            index=models.Index(fields=["actor", "id"], name="tasks_intervention_actor"),
        ),
        migrations.RunSQL("RESET lock_timeout", WITHOUT),
    ]
