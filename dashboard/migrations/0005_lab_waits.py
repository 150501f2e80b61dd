"""What is kept with a run of the lab besides its numbers: who waited for whom, and what it ran on."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0004_lab_runs")]

    operations = [
        migrations.AddField("labrun", "waits", models.JSONField(blank=True, null=True)),
        migrations.AddField("labrun", "server", models.TextField(blank=True, db_default="")),
    ]
