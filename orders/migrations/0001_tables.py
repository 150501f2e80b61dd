"""The tables of orders, accounts and their entries. Writes from outside the ORM raise the version too."""

from decimal import Decimal

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import tasks.support.durations
from tasks.locking import VersionTrigger


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Account",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.IntegerField(db_default=1, default=1, editable=False)),
                (
                    "balance",
                    models.DecimalField(db_default=Decimal("0"), decimal_places=2, default=Decimal("0"), max_digits=12),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        db_column="owner",
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="accounts",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "permissions": [("move_money", "Can deposit, withdraw and transfer money")],
            },
        ),
        migrations.CreateModel(
            name="Entry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("amount", models.DecimalField(decimal_places=2, max_digits=12)),
                (
                    "kind",
                    models.TextField(
                        choices=[("deposit", "Deposit"), ("withdrawal", "Withdrawal"), ("transfer", "Transfer")]
                    ),
                ),
                ("transfer_id", models.UUIDField(blank=True, null=True)),
                ("at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                (
                    "account",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="entries", to="orders.account"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.IntegerField(db_default=1, default=1, editable=False)),
                ("customer_email", models.EmailField(max_length=254)),
                ("placed_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("shipped_at", models.DateTimeField(blank=True, null=True)),
                ("shipped_email_sent", models.BooleanField(db_default=False, default=False)),
                (
                    "email_state",
                    models.TextField(
                        choices=[
                            ("none", "Not sent"),
                            ("sending", "Sending"),
                            ("sent", "Sent"),
                            ("unknown", "Unknown"),
                        ],
                        db_default="none",
                        default="none",
                    ),
                ),
                ("email_owner", models.TextField(blank=True, db_default="", default="")),
                ("email_since", models.DateTimeField(blank=True, null=True)),
                ("email_attempts", models.SmallIntegerField(db_default=0, default=0)),
                ("email_next_at", models.DateTimeField(blank=True, null=True)),
                ("email_reply", models.TextField(blank=True, db_default="", default="")),
            ],
            options={
                "permissions": [("ship_order", "Can send the e-mails of shipped orders, and resolve unknown ones")],
                "indexes": [
                    models.Index(
                        condition=models.Q(("shipped_at__isnull", False), ("shipped_email_sent", False)),
                        fields=["id"],
                        name="orders_order_to_mail",
                    ),
                    models.Index(
                        fields=["email_state", "id"],
                        condition=models.Q(email_state__in=("none", "sending", "unknown")),
                        name="orders_order_by_state",
                    ),
                    models.Index(
                        models.OrderBy(
                            models.ExpressionWrapper(
                                models.Q(("shipped_at__isnull", False), ("shipped_email_sent", False)),
                                models.BooleanField(),
                            ),
                            descending=True,
                        ),
                        models.OrderBy(models.F("id"), descending=True),
                        name="orders_order_pending_first",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("email_state__in", ("none", "sending", "sent", "unknown"))),
                        name="orders_order_email_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("email_state", "sent"), _negated=True),
                            ("shipped_email_sent", True),
                            _connector="OR",
                        ),
                        name="orders_order_sent_is_sent",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("email_state", "none"), ("shipped_at__isnull", False), _connector="OR"),
                        name="orders_order_mail_only_shipped",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("email_state", "sending"), _negated=True),
                            models.Q(("email_owner", ""), _negated=True),
                            _connector="OR",
                        ),
                        name="orders_order_sending_has_owner",
                    ),
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="account",
            constraint=models.CheckConstraint(
                condition=models.Q(("balance__gte", 0)), name="orders_account_balance_not_negative"
            ),
        ),
        migrations.AddIndex(
            model_name="entry",
            index=models.Index(fields=["account", "id"], name="orders_entry_account"),
        ),
        migrations.AddConstraint(
            model_name="entry",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount", 0), _negated=True), name="orders_entry_amount_not_zero"
            ),
        ),
        VersionTrigger("orders.Order"),
        VersionTrigger("orders.Account"),
    ]
