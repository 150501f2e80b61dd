"""The installations that the page of the fleet shows."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0002_alerts"), ("dashboard", "0004_api")]

    operations = [
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
