"""The settings of the pages: further keys of the dictionary `ROWLOCK`, and Django settings of the variable's name."""

from typing import Any

from django.conf import settings

from tasks import conf
from tasks.conf import Setting, flag

SETTINGS = {
    "LAB": Setting("ROWLOCK_LAB", flag, False),
    "METRICS_TOKEN": Setting("METRICS_TOKEN", str, ""),
    "PROXY_COUNT": Setting("PROXY_COUNT", int, 0),
    "URL": Setting("ROWLOCK_URL", str, ""),
    "ALERT_URLS": Setting("ROWLOCK_ALERT_URLS", str.split, []),
    "ALERT_SECRET": Setting("ROWLOCK_ALERT_SECRET", str, ""),
    "ALERT_PRIVATE": Setting("ROWLOCK_ALERT_PRIVATE", flag, False),
    "SHARED_LOOK_SECONDS": Setting("SHARED_LOOK_SECONDS", float, 1.0),
}
conf.SETTINGS.update(SETTINGS)


def get(key: str) -> Any:
    """As `tasks.conf.get`, but a Django setting of the variable's name comes before the environment."""
    named = getattr(settings, SETTINGS[key].variable, None)
    return conf.get(key) if named is None or conf.is_configured(key) else named
