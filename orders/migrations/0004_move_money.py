"""The right to move money between accounts."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("orders", "0003_order_emails")]

    operations = [
        migrations.AlterModelOptions(
            name="account",
            options={"permissions": [("move_money", "Can deposit, withdraw and transfer money")]},
        ),
    ]
