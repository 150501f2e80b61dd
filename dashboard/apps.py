"""The dashboard's app, and the admin with our own site in place of the stock one."""

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig
from django.db.models.signals import post_migrate


class DashboardConfig(AppConfig):
    name = "dashboard"

    def ready(self) -> None:
        from dashboard import login, names
        from dashboard.attention import acknowledging
        from dashboard.locks import history as lock_history
        from dashboard.permissions import create_groups
        from tasks.actions.prune import register_history

        register_history(*lock_history.HISTORY, *acknowledging.HISTORY)
        names.name_tables()
        login.log_logins()
        post_migrate.connect(create_groups, dispatch_uid="dashboard.permissions")


class RowlockAdminConfig(AdminConfig):
    default_site = "dashboard.site.RowlockAdminSite"
