"""System checks: what `manage.py check` says of the queue's configuration."""

from typing import Any

from django.core.checks import CheckMessage


def check_backend(alias: str, options: dict[str, Any]) -> list[CheckMessage]:
    return []
