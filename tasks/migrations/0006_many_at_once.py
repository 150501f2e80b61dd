"""Every task that a worker runs: one process may run several."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tasks", "0005_failures")]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="running_ids",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(), blank=True, db_default=[], size=None
            ),
        ),
    ]
