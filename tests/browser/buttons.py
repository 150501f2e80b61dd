"""Each button of the templates under a name of its own, so that it can be told which of them a browser has pressed."""

import re
from itertools import count
from pathlib import Path

from django.conf import settings
from django.template import Origin
from django.template.loaders.filesystem import Loader
from playwright.sync_api import Page

FOLDER = Path(settings.BASE_DIR) / "templates"
BUTTON = re.compile(r"<button\b")
TELL = """
document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-from]");
    if (button && !button.disabled) window.pressed(button.dataset.from);
}, true);
"""


class NumberingLoader(Loader):
    """Gives each button its template's name and its place among the buttons there."""

    def get_contents(self, origin: Origin) -> str:
        places = count(1)
        text = super().get_contents(origin)
        return BUTTON.sub(lambda _: f'<button data-from="{origin.template_name} {next(places)}"', text)


def numbered(templates: list[dict]) -> list[dict]:
    """The setting TEMPLATES with that loader."""
    loaders = [("tests.browser.buttons.NumberingLoader", [FOLDER]), "django.template.loaders.app_directories.Loader"]
    options = {**templates[0]["OPTIONS"], "loaders": [("django.template.loaders.cached.Loader", loaders)]}
    return [{**templates[0], "DIRS": [], "APP_DIRS": False, "OPTIONS": options}]


def all_buttons() -> set[str]:
    """Every button that stands in a template."""
    return {
        f"{path.relative_to(FOLDER)} {place}"
        for path in FOLDER.rglob("*.html")
        for place in range(1, len(BUTTON.findall(path.read_text())) + 1)
    }


def record(page: Page) -> set[str]:
    """From now on, which buttons are pressed in this window."""
    pressed: set[str] = set()
    page.expose_binding("pressed", lambda _, button: pressed.add(button))
    page.add_init_script(TELL)
    return pressed
