"""The dashboard's app, and the admin app with our own site."""

from django.apps import AppConfig, apps
from django.contrib.admin.apps import AdminConfig
from django.contrib.postgres.apps import PostgresConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class DashboardConfig(AppConfig):
    name = "dashboard"

    def ready(self) -> None:
        from dashboard import checks as checks  # registers the checks
        from dashboard import login, names
        from dashboard.attention import inbox
        from dashboard.locks import history as lock_history
        from dashboard.permissions import create_groups
        from tasks.operations.prune import register_history

        register_history(*lock_history.HISTORY, *inbox.HISTORY)
        names.name_tables()
        login.log_logins()
        post_migrate.connect(create_groups, dispatch_uid="dashboard.permissions")


class QuietPostgresConfig(PostgresConfig):
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


class RowlockAdminConfig(AdminConfig):
    default_site = "dashboard.site.RowlockAdminSite"
