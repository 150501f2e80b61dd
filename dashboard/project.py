"""Complete a project's settings for our pages: the layout and the script of htmx. Choose the languages to offer."""

import os
import sys
from pathlib import Path
from typing import Any, cast

import django_htmx
from django.apps import apps
from django.conf import settings
from django.core.management.base import CommandError

HERE = Path(__file__).resolve().parent
# In the app when installed from the wheel, beside it in a checkout.
TEMPLATES = next(folder for folder in (HERE / "templates", HERE.parent / "templates") if folder.is_dir())
HTMX = Path(django_htmx.__file__).parent / "static" / "django_htmx"
LANGUAGES = {"en", *(folder.name for folder in (HERE / "locale").iterdir())}
LOCALE_MIDDLEWARE = "django.middleware.locale.LocaleMiddleware"
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
