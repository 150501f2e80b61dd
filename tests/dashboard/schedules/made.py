"""Schedules for tests of their pages."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from tasks.models import Schedule
from tests.tasks import handlers

NOTHING = handlers.nothing.module_path
PAGE = "/admin/ops/schedule/"
WHEN = {"cron": "0 3 * * *", "every_seconds": None, "timezone": "UTC", "missed": "skip", "overlap": "skip"}


def made(name: str = "nightly", *, due_in: float = 3600.0, **columns: Any) -> Schedule:
    """A schedule whose next time is so many seconds away."""
    next_at = timezone.now() + timedelta(seconds=due_in)
    row = Schedule.objects.create(**{"name": name, "task_path": NOTHING, **WHEN, "next_at": next_at, **columns})
    row.refresh_from_db()
    return row


def declared(name: str = NOTHING, **columns: Any) -> Schedule:
    """A schedule that code declares for four o'clock; without a change of it, three o'clock overrides it."""
    return made(name, declared={**WHEN, "cron": "0 4 * * *"}, **columns)
