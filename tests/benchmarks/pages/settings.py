"""The tests' settings with the limits and the sharing of a real web server's sessions."""

from dashboard.environment import PAGE_SESSION
from tests.settings import *  # noqa: F403

DATABASES["default"]["OPTIONS"]["options"] = PAGE_SESSION  # noqa: F405
DATABASES["default"]["OPTIONS"]["application_name"] = "rowlock:web"  # noqa: F405
SHARED_LOOK_SECONDS = 1.0
LOGGING["root"]["level"] = "WARNING"  # type: ignore[index]  # noqa: F405
