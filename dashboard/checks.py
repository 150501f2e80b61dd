"""System check: sessions of the pages must have timeouts (fault F21)."""

from typing import Any

import environ
from django.core.checks import CheckMessage, Tags, Warning, register
from django.db import connection

from dashboard import databases
from tasks.support.database import fetch

# Settings that the role gives to a session; a management command has no limits of its own.
UNLIMITED = """
SELECT name FROM pg_settings
WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout') AND setting = '0'
ORDER BY name
"""


@register(Tags.database)
def check_page_limits(**kwargs: Any) -> list[CheckMessage]:
    """Warn if the pages go through a pooling proxy and their role sets no limits; the proxy accepts no options."""
    if "default" not in (kwargs.get("databases") or ()) or not databases.is_pooled(environ.Env()):
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
