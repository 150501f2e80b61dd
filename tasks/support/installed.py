"""Tell our installed apps from others of the same name."""

from pathlib import Path

from django.apps import apps

HOME = Path(__file__).resolve().parent.parent.parent  # the parent folder of our apps


def is_ours(label: str) -> bool:
    """True if the installed app of this name is Rowlock's: another package may have the name."""
    return apps.is_installed(label) and Path(apps.get_app_config(label).path).resolve().parent == HOME
