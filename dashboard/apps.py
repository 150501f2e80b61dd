"""The dashboard's app and the admin app with our own site: a system check, names of columns, groups of operators."""

from typing import Any

from django.apps import AppConfig, apps
from django.contrib.admin import apps as admin_apps
from django.contrib.postgres import apps as postgres_apps
from django.core.checks import CheckMessage, Tags, Warning, register
from django.db import connection, connections
from django.db.backends.signals import connection_created
from django.db.models import Q
from django.db.models.signals import post_migrate
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from tasks import conf
from tasks.support.database import fetch
from tasks.support.installed import is_ours

# Settings that the role gives to a session; a management command has no limits of its own.
UNLIMITED = """
SELECT name FROM pg_settings
WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout') AND setting = '0'
ORDER BY name
"""


@register(Tags.database)
def check_page_limits(**kwargs: Any) -> list[CheckMessage]:
    """Warn if the pages go through a pooling proxy and their role sets no limits; the proxy accepts no options."""
    if "default" not in (kwargs.get("databases") or ()) or not conf.get("DIRECT_DATABASE_URL"):
        return []
    missing = [row["name"] for row in fetch(connection, UNLIMITED)]
    if not missing:
        return []
    return [
        Warning(
            f"Behind the pooling proxy the sessions of the pages have no {', '.join(missing)}.",
            hint="Give them to the role of the web server with ALTER ROLE … SET, as docs/proxies.md says. Where this "
            "role is not the web server's, ask there.",
            id="rowlock.W005",
        )
    ]


OPERATE = frozenset(
    {
        "requeue_task", "recover_task", "cancel_task", "pause_queue", "configure_queue", "ship_order", "forget_command",
        "acknowledge", "direct_demo", "edit_task", "enqueue_task", "run_burst", "run_pattern", "stop_worker",
        "edit_schedule", "pause_schedule", "run_schedule", "configure_limit",
    }
)  # fmt: skip
# In addition, every group may view all our tables but the channels of alerts, which are for superusers.
GROUPS: dict[str, frozenset[str]] = {
    "Viewers": frozenset(),
    "Operators": OPERATE,
    "Lock administrators": OPERATE | {"signal_backend", "release_lock"},
    "Account managers": frozenset({"move_money"}),
}


def create_groups(sender: AppConfig, using: str, **kwargs: Any) -> None:
    """Receiver of `post_migrate`: waits for the last app, when the permissions of all of them exist.

    Django sends the signal only for apps that have models.
    """
    with_models = [config for config in apps.get_app_configs() if config.models_module is not None]
    if sender is not with_models[-1]:
        return
    from django.contrib.auth.models import Group, Permission

    if Group._meta.db_table not in connections[using].introspection.table_names():
        return  # `migrate tasks` alone, before the tables of people

    ours = Permission.objects.using(using).filter(content_type__app_label__in=filter(is_ours, APP_NAMES))
    rights = ours.exclude(codename="view_alertchannel")
    for name, codenames in GROUPS.items():
        if codenames and not rights.filter(codename__in=codenames).exists():
            continue  # its app is not installed
        group, _ = Group.objects.using(using).get_or_create(name=name)
        group.permissions.add(*rights.filter(Q(codename__in=codenames) | Q(codename__startswith="view_")))


APP_NAMES: dict[str, Promise] = {"tasks": _("Task queue"), "orders": _("Orders"), "dashboard": _("Dashboard")}
TABLES: dict[str, tuple[Promise, Promise]] = {
    "tasks.Task": (_("task"), _("tasks")),
    "tasks.Queue": (_("queue"), _("queues")),
    "tasks.Limit": (_("limit"), _("limits")),
    "tasks.Bucket": (_("bucket"), _("buckets")),
    "tasks.Attempt": (_("attempt"), _("attempts")),
    "tasks.Worker": (_("worker"), _("workers")),
    "tasks.RefusedWrite": (_("refused write"), _("refused writes")),
    "tasks.Intervention": (_("intervention"), _("interventions")),
    "dashboard.Installation": (_("installation"), _("installations")),
    "orders.Order": (_("order"), _("orders")),
    "orders.Account": (_("account"), _("accounts")),
    "orders.Entry": (_("entry"), _("entries")),
}
# Tasks and queues have pages of their own, which name their columns themselves.
COLUMNS: dict[str, Promise] = {
    "action": _("action"),
    "actor": _("actor"),
    "actual_version": _("actual version"),
    "at": _("at"),
    "balance": _("balance"),
    "current_since": _("current since"),
    "current_task_id": _("current task"),
    "customer_email": _("customer's e-mail"),
    "email_attempts": _("attempts of the e-mail"),
    "email_next_at": _("next attempt of the e-mail"),
    "email_owner": _("sender of the e-mail"),
    "email_reply": _("last reply"),
    "email_since": _("being sent since"),
    "email_state": _("state of the e-mail"),
    "exception_class": _("exception"),
    "expected_version": _("expected version"),
    "finished_at": _("finished at"),
    "heartbeat_at": _("last heartbeat"),
    "hostname": _("host"),
    "intent": _("intent"),
    "lease_seconds": _("lease, seconds"),
    "missing_since": _("missing since"),
    "number": _("number"),
    "outcome": _("outcome"),
    "owner": _("owner"),
    "placed_at": _("placed at"),
    "presence_epoch": _("epoch of its presence"),
    "queues": _("queues"),
    "reason": _("reason"),
    "shipped_at": _("shipped at"),
    "shipped_email_sent": _("e-mail sent"),
    "source": _("source"),
    "started_at": _("started at"),
    "stop_reason": _("reason of its end"),
    "stop_requested_at": _("stop requested at"),
    "stopped_at": _("stopped at"),
    "strategy": _("strategy"),
    "target": _("target"),
    "task": _("task"),
    "task_id": _("task"),
    "task_paths": _("functions"),
    "traceback": _("traceback"),
    "version": _("version"),
    "version_after": _("version after"),
    "version_before": _("version before"),
    "worker_id": _("worker"),
}


def name_tables() -> None:
    """Set these names on the models of our apps."""
    for label, name in APP_NAMES.items():
        if is_ours(label):
            apps.get_app_config(label).verbose_name = name  # type: ignore[assignment]
    for label, (one, many) in TABLES.items():
        if is_ours(label.partition(".")[0]):
            options = apps.get_model(label)._meta
            options.verbose_name, options.verbose_name_plural = one, many
            for column in options.concrete_fields:
                column.verbose_name = COLUMNS.get(column.name, column.verbose_name)


class DashboardConfig(AppConfig):
    name = "dashboard"
    default = True  # for INSTALLED_APPS with "dashboard" alone
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from dashboard import login, project  # its checks register themselves
        from tasks.operations.prune import register_history
        from tasks.worker.companion import register_companion

        register_companion("dashboard.alerts.watching")
        register_history(
            "dashboard.alerts.watch",
            "dashboard.api.idempotency",
            "dashboard.api.throttle",
            "dashboard.attention.inbox",
            "dashboard.locks.history",
        )
        project.provide()
        name_tables()
        login.log_logins()
        post_migrate.connect(create_groups, dispatch_uid="dashboard.permissions")


class QuietPostgresConfig(postgres_apps.PostgresConfig):
    """Skip the lookup of the types hstore and citext unless a model has an hstore field.

    It costs two queries in each new process, and commands run by cron every minute are new processes.
    """

    def ready(self) -> None:
        from django.contrib.postgres.fields import HStoreField
        from django.contrib.postgres.signals import register_type_handlers

        super().ready()
        fields = (field for model in apps.get_models() for field in model._meta.local_fields)
        if not any(isinstance(field, HStoreField) for field in fields):
            connection_created.disconnect(register_type_handlers)


class RowlockAdminConfig(admin_apps.AdminConfig):
    default = False
    default_site = "dashboard.site.RowlockAdminSite"
