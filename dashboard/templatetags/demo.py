"""The ribbon that shows on every page that the demo is on."""

from typing import Any

from django import template
from django.db import OperationalError, connection

from dashboard import demo
from dashboard.attention.inbox import is_too_slow
from dashboard.demo import control
from dashboard.demo.control import COMMAND_LINES, DIRECT
from dashboard.live import snapshots
from dashboard.locks.limits import Unavailable, locked_tables
from dashboard.models import DemoRow

register = template.Library()


@register.inclusion_tag("dashboard/_demo.html", takes_context=True)
def demo_ribbon(context: dict[str, Any]) -> dict[str, Any]:
    """Render the ribbon, or why its state is not known; without the demo this costs no query."""
    request = context.get("request")
    user = getattr(request, "user", None)
    if not (demo.is_on() and context.get("has_permission") and request and user):
        return {"is_shown": False}
    try:
        state = snapshots.of(request).once(control.state)
    except OperationalError as error:
        if not is_too_slow(error):
            raise
        table = DemoRow._meta.db_table
        return {"is_shown": True, "unavailable": Unavailable(table, locked_tables(connection).get(table))}
    return {
        "is_shown": state.is_there,
        "director": state.director,
        "may_direct": user.has_perm(DIRECT),
        "commands": COMMAND_LINES,
        "csrf_token": context.get("csrf_token"),
    }
