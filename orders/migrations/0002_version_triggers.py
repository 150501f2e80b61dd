"""Writes from outside the ORM raise the version too."""

from django.db import migrations

from tasks.locking import VersionTrigger


class Migration(migrations.Migration):
    dependencies = [("orders", "0001_tables")]

    operations = [VersionTrigger("orders.Order"), VersionTrigger("orders.Account")]
