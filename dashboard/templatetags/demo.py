"""The ribbon that shows on every page that the demo is on."""

from typing import Any

from django import template

from dashboard import demo
from dashboard.demo import control
from dashboard.views.demo import COMMANDS, DIRECT

register = template.Library()


@register.inclusion_tag("dashboard/_demo.html", takes_context=True)
def demo_ribbon(context: dict[str, Any]) -> dict[str, Any]:
    """Render the ribbon; without the demo this costs no query."""
    user = getattr(context.get("request"), "user", None)
    if not (demo.is_on() and context.get("has_permission") and user):
        return {"is_shown": False}
    state = control.state()
    return {
        "is_shown": state.is_there,
        "director": state.director,
        "may_direct": user.has_perm(DIRECT),
        "commands": COMMANDS,
        "csrf_token": context.get("csrf_token"),
    }
