"""A project around our pages: complete its settings, choose the languages to offer, and check what it lacks.

The checks are warnings: each can be silenced by SILENCED_SYSTEM_CHECKS.
"""

import os
import sys
from pathlib import Path
from typing import Any, cast

import django_htmx
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.management.base import CommandError

HERE = Path(__file__).resolve().parent
# In the app when installed from the wheel, beside it in a checkout.
TEMPLATES = next(folder for folder in (HERE / "templates", HERE.parent / "templates") if folder.is_dir())
HTMX = Path(django_htmx.__file__).parent / "static" / "django_htmx"
LANGUAGES = {"en", *(folder.name for folder in (HERE / "locale").iterdir())}
LOCALE_MIDDLEWARE = "django.middleware.locale.LocaleMiddleware"
# A worker started to be killed takes long over a first attempt, so that it dies in the middle of one.
VICTIM = "ROWLOCK_DEMO_VICTIM"
DJANGO_TEMPLATES = "django.template.backends.django.DjangoTemplates"


def provide() -> None:
    """Complete the settings; called once, before Django reads them for the first template and static file.

    Django looks for templates in the order of INSTALLED_APPS, where its own admin may come before our app. So the
    folder is added to DIRS, behind the project's own folders, which go on to win.
    """
    for engine in cast("list[dict[str, Any]]", settings.TEMPLATES):
        folders = [Path(folder) for folder in engine.get("DIRS", ())]
        if engine["BACKEND"] == DJANGO_TEMPLATES and TEMPLATES not in folders:
            engine["DIRS"] = [*folders, TEMPLATES]
    if not apps.is_installed("django_htmx"):
        settings.STATICFILES_DIRS = [*settings.STATICFILES_DIRS, ("django_htmx", HTMX)]


def refuse_elsewhere(instead: str) -> None:
    """Raise CommandError in a project of others: a command that needs our own project's settings."""
    if not hasattr(settings, "VAR_DIR"):
        raise CommandError(f"This command is for Rowlock's own project. {instead}")


def manage(*words: str) -> list[str]:
    """The command line of a management command in a process of its own, which gets `environment()`."""
    script = home() / "manage.py"
    return [sys.executable, *([str(script)] if script.exists() else ["-m", "django"]), *words]


def home() -> Path:
    """The project's folder, as far as it is known."""
    return Path(getattr(settings, "BASE_DIR", None) or Path.cwd())


def environment() -> dict[str, str]:
    """The environment in which another process finds the project's modules, wherever it starts."""
    found = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    return {**os.environ, "PYTHONPATH": found}


def languages() -> list[tuple[str, str]]:
    """The languages to offer: those of the project that we speak; none if the project does not let readers choose."""
    if LOCALE_MIDDLEWARE not in settings.MIDDLEWARE:
        return []
    found = [(code, name) for code, name in settings.LANGUAGES if code in LANGUAGES]
    return found if len(found) > 1 else []


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
