"""System checks of the project around our pages: what is missing there, and why it matters.

Nothing of it is needed for the pages to work. Each can be silenced by SILENCED_SYSTEM_CHECKS.
"""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

SECURITY_MIDDLEWARE = "django.middleware.security.SecurityMiddleware"
FRAME_MIDDLEWARE = "django.middleware.clickjacking.XFrameOptionsMiddleware"
CSP_MIDDLEWARE = {"django.middleware.csp.ContentSecurityPolicyMiddleware", "csp.middleware.CSPMiddleware"}
GUESS_LIMITS = {"axes", "defender", "allauth"}  # packages that limit guesses
LOOPBACK = {"testserver", "localhost", ".localhost", "127.0.0.1", "[::1]"}


def warning(id: str, text: str, hint: str) -> CheckMessage:
    silence = f"If the server in front does it, silence this by SILENCED_SYSTEM_CHECKS = [{id!r}]."
    return Warning(text, hint=f"{hint} {silence}", id=id)


@register
def check_project(**kwargs: Any) -> list[CheckMessage]:
    """Warn of what a project lacks for pages that can end sessions of its database."""
    middleware, found = set(settings.MIDDLEWARE), []
    if not GUESS_LIMITS & {name.partition(".")[0] for name in settings.INSTALLED_APPS}:
        text = "Nothing limits guesses of passwords: whoever guesses an operator's can end sessions of your database."
        found.append(warning("rowlock.W006", text, "Install django-axes, for example."))
    if lacking := {SECURITY_MIDDLEWARE, FRAME_MIDDLEWARE} - middleware:
        text = f"MIDDLEWARE lacks {', '.join(sorted(lacking))}: another site can show our buttons in a frame."
        found.append(warning("rowlock.W007", text, "Add what `django-admin startproject` has."))
    if not CSP_MIDDLEWARE & middleware:
        text = "No content security policy: a script that gets into any page of this site can press our buttons."
        hint = "Add django-csp, or Django's own from 6.0. Our pages need only default-src 'self' and img-src data:."
        found.append(warning("rowlock.W008", text, hint))
    if is_reachable() and not (settings.SESSION_COOKIE_SECURE and settings.CSRF_COOKIE_SECURE):
        text = "The cookies of sessions and forms also travel over HTTP, where others can read and use them."
        found.append(warning("rowlock.W009", text, "Behind TLS set SESSION_COOKIE_SECURE and CSRF_COOKIE_SECURE."))
    if not settings.DEBUG and not settings.STATIC_ROOT:
        text = "STATIC_ROOT is not set, so `collectstatic` has no target: without DEBUG our pages have no style."
        found.append(warning("rowlock.W010", text, "Set it, and serve that folder, for example with whitenoise."))
    return found


@register
def check_fleet(**kwargs: Any) -> list[CheckMessage]:
    """Report parts of ROWLOCK_FLEET that name no installation, without their tokens."""
    from dashboard.fleet.installations import FORM, configured  # it needs the models

    _targets, faults = configured()
    return [Error(fault, hint=f"Write each part like {FORM}.", id="rowlock.E020") for fault in faults]


def is_reachable() -> bool:
    """True if the site is meant for other machines. Tests of Django add `testserver`."""
    return not settings.DEBUG and bool(set(settings.ALLOWED_HOSTS) - LOOPBACK)
