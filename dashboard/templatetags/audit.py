"""Filters for the audit page."""

from django import template
from django.utils.http import urlencode

from dashboard.links import page
from tasks.support.addresses import address

register = template.Library()

PAGES = {"lock": "admin:ops_schedule", "command": "admin:ops_schedule", "attention": "admin:index"}
ROWS = {
    "task": "admin:tasks_task_change",
    "order": "admin:orders_order_change",
    "account": "admin:orders_account_change",
    "lab run": "admin:ops_lab_run",
}


@register.filter
def target_href(target: str) -> str:
    """Link to the page of an intervention's target; empty if there is none."""
    kind, _colon, name = target.partition(":")
    if kind in ROWS and name.isascii() and name.isdecimal():
        return page(ROWS[kind], int(name))
    if kind in ("queue", "worker"):
        return f"{address('admin:tasks_task_changelist')}?{urlencode({kind: name})}"
    return page(PAGES[kind]) if kind in PAGES else ""
