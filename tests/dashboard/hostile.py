"""Text as an attacker would store it, in every column of every table that takes text."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.contrib.auth.models import User
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils import timezone

from dashboard.lab.worker import Plan
from orders.models import Account, Order
from tasks.models import Task, TaskStatus
from tests import old_rows

SCRIPTS = (
    "<img src=x onerror=\"window.pwned='img'\">"
    "<script>window.pwned='script'</script>"
    "\"'><svg/onload=window.pwned='svg'>"
    "</textarea></title></pre><iframe srcdoc='<script>parent.pwned=1</script>'></iframe>"
    "<a href=\"javascript:window.pwned='link'\" hx-get=/admin/ hx-trigger=load data-live=1>press</a>"
    "<style>body{display:none}</style><!--"
)
TEMPLATE = "{{ 6|add:1111 }}{% debug %}${7*7}#{7*7}%(name)s{0}"
UNREADABLE = "\u202etxt.exe\u202c \u2066\u200b\ufeff\x01\x08\x1b[31m\x7f\u0085\u2028 \U0001f4a3 z\u0351\u0352"
LONG = "long" * 700
HOSTILE = f"{SCRIPTS} {TEMPLATE} {UNREADABLE} {LONG}"
SHORT = f"{SCRIPTS[:41]} {TEMPLATE[:21]} \u202etxt"  # where a column is indexed or short: an index row holds 2704 bytes
PATH = f"{SCRIPTS} {TEMPLATE}"[:500]  # as long as the table takes it; older ones were mended by a migration
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
ID = 4711
APPS = ("tasks", "orders", "dashboard")
INDEXED = 800
NEVER = {"tasks.Epoch", "dashboard.Backend", "orders.Entry", "orders.Account"}
# What a constraint demands; everything else is filled by the kind of its column.
DEMANDED: dict[str, dict[str, Any]] = {
    "tasks.Task": {
        "task_path": PATH,
        "status": "FAILED",
        "attempt": 5,
        "max_attempts": 5,
        "claimed_by": None,
        "ordering_key": None,
        "slot": None,
        "queue_slot": None,
        **dict.fromkeys(("unique_key", "concurrency_key", "rate_key"), SHORT),  # checked since there are such columns
    },
    "dashboard.ApiToken": {"secret_hash": "0" * 64, "group": None},
    "dashboard.Installation": {"name": "shop", "url": "https://shop.test", "token": f"gAAAA{'x' * 20}"},
    "dashboard.AlertChannel": {"sealed_address": "gAAAA"},  # nothing that is not encrypted
    "dashboard.Threshold": {"name": "late_seconds"},  # only known names
    "tasks.Schedule": {
        "every_seconds": None,
        "held_by_task_id": None,
        "ended_at": None,
        "ends_at": None,
        "task_path": PATH,
        **dict.fromkeys(("cron", "timezone", "paused_by", "problem"), SHORT[:100]),
    },
    "tasks.Tick": {"held_by_task_id": None},
    "tasks.CommandRun": {"outcome": "failed"},
    "tasks.Lock": {"backend": "lease"},
    "tasks.Queue": {"recovery": "ask"},
    "orders.Order": {"email_state": "unknown", "shipped_email_sent": False},
    "tasks.Worker": {"stopped_at": None},
    # A run's numbers are the lab's own; its statements are whatever programs sent.
    "dashboard.LabRun": {
        "plan": asdict(Plan("unsafe")),
        "statements": [[HOSTILE, 2]],
        "waits": [[0, [None], HOSTILE, 0.0, 1.0]],
        "result": None,
        "spans": None,
    },
    "tasks.BulkRun": {"action": "requeue", "options": {}, "refusals": {}},  # the code's own words
}


def value_for(field: models.Field) -> Any:
    """Something hostile for a column of text, something plain for any other."""
    if isinstance(field, ArrayField):
        return [value_for(field.base_field)]
    if isinstance(field, models.JSONField):
        return [HOSTILE, {SHORT: HOSTILE}] if field.name == "args" else {SHORT: [HOSTILE], "password": "swordfish"}
    if field.name == "traceparent":
        return TRACEPARENT  # a constraint takes nothing else
    if isinstance(field, models.CharField | models.TextField):
        is_short = field.primary_key or field.unique or field.db_index or field.max_length or "name" in field.name
        return SHORT[: field.max_length] if is_short else HOSTILE
    if isinstance(field, models.DateTimeField):
        return timezone.now() - timedelta(hours=2)
    if isinstance(field, models.DurationField):
        return timedelta(hours=1)
    return 1


def plant() -> None:
    """One hostile row in every table, each under the same number where its key is one; as before names were checked."""
    with old_rows.unchecked():
        _plant()


def _plant() -> None:
    account = Account(id=ID, owner=User.objects.create(id=ID, username="owner", first_name=SHORT[:100]))
    account.save()
    for model in (model for label in APPS for model in apps.get_app_config(label).get_models()):
        if model._meta.label not in NEVER and model._meta.managed:
            row = row_of(model)
            model._base_manager.bulk_create([row])
    Task.objects.bulk_create(ready_and_processing())


def row_of(model: type[models.Model]) -> models.Model:
    demanded = DEMANDED.get(model._meta.label, {})
    columns: dict[str, Any] = {}
    for field in model._meta.concrete_fields:
        is_number = field.is_relation or (field.primary_key and not isinstance(field, models.TextField))
        if field.name in demanded and field.is_relation:
            columns[field.attname] = demanded[field.name]
        elif is_number or field.name in ("task_id", "blocked_task", "blocker_task"):
            columns[field.attname] = ID
        elif field.name in demanded:
            columns[field.attname] = demanded[field.name]
        elif field.choices:
            columns[field.attname] = next(iter(field.choices))[0]
        else:
            columns[field.attname] = value_for(field)
    return model(**columns)


def ready_and_processing() -> list[Task]:
    """A task that waits and one whose worker is unknown, under hostile names."""
    texts = {"task_path": SHORT, "queue_name": SHORT, "args": [HOSTILE], "kwargs": {SHORT: HOSTILE}}
    return [
        Task(status=TaskStatus.READY, ordering_key=SHORT, **texts),
        Task(status=TaskStatus.PROCESSING, claimed_by=f"{SHORT} gone", attempt=1, started_at=timezone.now(), **texts),
    ]


def order() -> Order:
    return Order.objects.get(pk=ID)
