"""The column of an account's owner is called `owner`, as programs of others know it.

A bare rename: AlterField would build the foreign key anew, reading the table under a lock on the accounts of people.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

RENAME = "ALTER TABLE orders_account RENAME COLUMN owner_id TO owner"
BACK = "ALTER TABLE orders_account RENAME COLUMN owner TO owner_id"


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("orders", "0005_unknown_fate_index"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(RENAME, BACK)],
            state_operations=[
                migrations.AlterField(
                    model_name="account",
                    name="owner",
                    field=models.ForeignKey(
                        db_column="owner",
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="accounts",
                        to=settings.AUTH_USER_MODEL,
                    ),
                )
            ],
        ),
    ]
