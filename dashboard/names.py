"""Translated names of our tables and columns for the stock admin pages.

They are not in each Meta, because there every change of a name would be a migration.
"""

from django.apps import apps
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

APPS: dict[str, Promise] = {"tasks": _("Task queue"), "orders": _("Orders"), "dashboard": _("Dashboard")}
TABLES: dict[str, tuple[Promise, Promise]] = {
    "tasks.Task": (_("task"), _("tasks")),
    "tasks.Queue": (_("queue"), _("queues")),
    "tasks.Attempt": (_("attempt"), _("attempts")),
    "tasks.Worker": (_("worker"), _("workers")),
    "tasks.RefusedWrite": (_("refused write"), _("refused writes")),
    "tasks.Intervention": (_("intervention"), _("interventions")),
    "orders.Order": (_("order"), _("orders")),
    "orders.Account": (_("account"), _("accounts")),
    "orders.Entry": (_("entry"), _("entries")),
}
COLUMNS: dict[str, Promise] = {
    "action": _("action"),
    "actor": _("actor"),
    "actual_version": _("actual version"),
    "args": _("arguments"),
    "at": _("at"),
    "attempt": _("attempt"),
    "balance": _("balance"),
    "cancel_requested_at": _("cancel requested at"),
    "claimed_by": _("claimed by"),
    "created_at": _("created at"),
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
    "finished_by": _("finished by"),
    "heartbeat_at": _("last heartbeat"),
    "hostname": _("host"),
    "intent": _("intent"),
    "kwargs": _("keyword arguments"),
    "lease_seconds": _("lease, seconds"),
    "max_attempts": _("attempts allowed"),
    "missing_since": _("missing since"),
    "name": _("name"),
    "number": _("number"),
    "ordering_key": _("ordering key"),
    "outcome": _("outcome"),
    "owner": _("owner"),
    "paused": _("paused"),
    "paused_at": _("paused at"),
    "paused_by": _("paused by"),
    "placed_at": _("placed at"),
    "presence_epoch": _("epoch of its presence"),
    "priority": _("priority"),
    "queue_name": _("queue"),
    "queues": _("queues"),
    "reason": _("reason"),
    "recovery": _("recovery"),
    "return_value": _("return value"),
    "run_after": _("not before"),
    "shipped_at": _("shipped at"),
    "shipped_email_sent": _("e-mail sent"),
    "source": _("source"),
    "started_at": _("started at"),
    "status": _("status"),
    "stop_reason": _("reason of its end"),
    "stop_requested_at": _("stop requested at"),
    "stopped_at": _("stopped at"),
    "strategy": _("strategy"),
    "target": _("target"),
    "task": _("task"),
    "task_id": _("task"),
    "task_path": _("function"),
    "task_paths": _("functions"),
    "traceback": _("traceback"),
    "version": _("version"),
    "version_after": _("version after"),
    "version_before": _("version before"),
    "worker_id": _("worker"),
}


def name_tables() -> None:
    """Set these names on the models of our apps."""
    for label, told in APPS.items():
        if apps.is_installed(label):
            apps.get_app_config(label).verbose_name = told  # type: ignore[assignment]
    for label, (one, many) in TABLES.items():
        if apps.is_installed(label.partition(".")[0]):
            options = apps.get_model(label)._meta
            options.verbose_name, options.verbose_name_plural = one, many
            for column in options.concrete_fields:
                column.verbose_name = COLUMNS.get(column.name, column.verbose_name)
