"""The tables of the API and of the fleet: tokens, writes that were carried out, counts of requests, installations."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import tasks.support.durations

# Counts wait for no disk. After a crash of the server they begin anew.
UNLOGGED = "ALTER TABLE dashboard_apicount SET UNLOGGED"
LOGGED = "ALTER TABLE dashboard_apicount SET LOGGED"


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("dashboard", "0002_alerts"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField(unique=True)),
                ("secret_hash", models.TextField(unique=True)),
                ("shown", models.TextField()),
                ("created_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("last_used_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "group",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="auth.group",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "verbose_name": "API token",
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("secret_hash__regex", "^[0-9a-f]{64}$")), name="dashboard_apitoken_hashed"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ApiRequest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.TextField()),
                ("digest", models.TextField()),
                ("status", models.SmallIntegerField(null=True)),
                ("body", models.TextField(db_default="")),
                ("at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp(), db_index=True)),
                (
                    "token",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="dashboard.apitoken"
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("token", "key"), name="dashboard_apirequest_once")],
            },
        ),
        migrations.CreateModel(
            name="ApiCount",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("began_at", models.DateTimeField()),
                ("number", models.IntegerField()),
            ],
            options={"default_permissions": ()},
        ),
        migrations.RunSQL(UNLOGGED, LOGGED),
        migrations.CreateModel(
            name="Installation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField(unique=True)),
                ("url", models.TextField(help_text="Of its site, like https://ops-billing.example")),
                ("token", models.TextField()),
            ],
            options={
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name__regex", "^[^=,|[:cntrl:]]{1,255}$")),
                        name="dashboard_installation_name_is_one",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("url__regex", "^https?://[^/?#@[:space:]]+(/[^?#@[:space:]]*)?$")),
                        name="dashboard_installation_url_is_one",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("token__regex", "^gAAAA[A-Za-z0-9_=-]{20,}$")),
                        name="dashboard_installation_sealed",
                    ),
                ],
            },
        ),
    ]
