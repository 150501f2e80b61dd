"""An index that finds and counts the orders of any state but "sent"; it is built while others write."""

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models

# What a build that broke off has left.
CLEAR = "DROP INDEX CONCURRENTLY IF EXISTS orders_order_by_state"


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("orders", "0002_version_triggers")]

    operations = [
        migrations.RunSQL(CLEAR, migrations.RunSQL.noop),
        AddIndexConcurrently(
            "order",
            models.Index(
                fields=["email_state", "id"],
                condition=models.Q(email_state__in=("none", "sending", "unknown")),
                name="orders_order_by_state",
            ),
        ),
        RemoveIndexConcurrently("order", "orders_order_unknown"),
    ]
