"""The order of the orders' page, whose e-mail is being sent, and the right to send them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("orders", "0002_version_triggers")]

    operations = [
        migrations.AlterModelOptions(
            name="order",
            options={
                "permissions": [("ship_order", "Can send the e-mails of shipped orders, and resolve unknown ones")]
            },
        ),
        migrations.AddIndex(
            model_name="order",
            index=models.Index(
                models.OrderBy(
                    models.ExpressionWrapper(
                        models.Q(("shipped_at__isnull", False), ("shipped_email_sent", False)), models.BooleanField()
                    ),
                    descending=True,
                ),
                models.OrderBy(models.F("id"), descending=True),
                name="orders_order_pending_first",
            ),
        ),
        migrations.AddConstraint(
            model_name="order",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("email_state", "sending"), _negated=True),
                    models.Q(("email_owner", ""), _negated=True),
                    _connector="OR",
                ),
                name="orders_order_sending_has_owner",
            ),
        ),
    ]
