"""Every button that changes something has its command beside it, ready to copy."""

import re
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).parents[2] / "templates"
COMMAND = re.compile(r'command\.html"|data-copy="{{')
INCLUDED = re.compile(r'{% include "([^"]+)"')
# Buttons that lead to a page which shows the command for what was ticked or matched, before anything changes.
LEADS_ON = {
    "task_pages/list.html": "task_pages/bulk_confirm.html",
    "failures/_actions.html": "task_pages/bulk_confirm.html",
    "task_pages/_row.html": "task_pages/confirm.html",
    "dashboard/_stale_row.html": "task_pages/confirm.html",
    "task_pages/_bar.html": "task_pages/bulk_confirm.html",
    "dashboard/_node.html": "dashboard/signal.html",
    "alerts/_channels.html": "alerts/delete.html",
    "alerts/_thresholds.html": "shared/_change.html",
}


def with_buttons() -> list[str]:
    return [
        str(path.relative_to(TEMPLATES))
        for path in sorted(TEMPLATES.rglob("*.html"))
        if "data-action=" in path.read_text()
    ]


def test_there_are_buttons():
    assert len(with_buttons()) > 20


def whole(name: str) -> str:
    """The template with those that it includes."""
    text = (TEMPLATES / name).read_text()
    return text + "".join(whole(part) for part in INCLUDED.findall(text))


@pytest.mark.parametrize("name", with_buttons())
def test_the_command_is_shown(name):
    assert COMMAND.search(whole(LEADS_ON.get(name, name))), f"{name} has a button without its command"
