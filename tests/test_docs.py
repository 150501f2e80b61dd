"""Check what the pages name: links, anchors and paths exist, and no setting or command is left out."""

import re
import subprocess
from pathlib import Path

import pytest
from django.core.management import get_commands

import tasks
from tasks.conf import SETTINGS
from tests.databases import ROOT

APPS = ("tasks", "orders", "dashboard")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
OURS = re.compile(r"(?<![\w/.:-])((?:tasks|orders|dashboard|templates|tests|docs)/[\w./-]*\w)")
DOTTED = re.compile(r"(?<![\w/.])(?:tasks|orders|dashboard|tests)(?:\.\w+)+")
# A variable is read by a call such as env.bool("HTTPS") or environ.get("PORT").
READ = re.compile(r"""\benv(?:iron)?(?:\.\w+)?[(\[]\s*["']([A-Z][A-Z_]+)["']""")
# The modules to which dashboard/settings.py hands its environment.
READERS = ("settings.py", "environment.py")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def anchors(page: Path) -> set[str]:
    """The fragments that a link to the page may end with: its headings as GitHub spells them, and its ids."""
    text = CODE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    spelled = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return spelled | set(re.findall(r'id="([^"]+)"', text))


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@every_page
def test_every_link_and_anchor_resolves(page):
    links = LINK.findall(CODE.sub("", page.read_text()))
    inside = [link for link in links if not re.match(r"https?:|mailto:", link)]
    assert [link for link in inside if not leads_somewhere(page, link)] == []


@every_page
def test_every_path_of_ours_exists(page):
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    paths = OURS.findall(page.read_text())
    # A shell pattern such as docs/deploy/rowlock-* names all files that begin so.
    assert [path for path in paths if not any(f"{file}/".startswith(path) for file in tracked)] == []


@every_page
def test_every_module_in_backticks_exists(page):
    """`tasks.locking.lock` or `tests.mutations`: the first two parts are a module, a package or a public name."""
    spans = re.findall(r"`([^`\n]+)`", CODE.sub("", page.read_text()))
    rights = re.compile(r"\.(view|add|change|delete|[a-z]+)_\w+$|\.(acknowledge|direct_demo)$|\.md$")
    named = [name for span in spans for name in DOTTED.findall(span) if not rights.search(name)]
    stems = [ROOT.joinpath(*name.split(".")[:2]) for name in named if name.removeprefix("tasks.") not in tasks.__all__]
    assert [stem.name for stem in stems if not stem.is_dir() and not stem.with_suffix(".py").exists()] == []


def test_the_settings_page_names_every_variable_that_is_read():
    text = (ROOT / "docs" / "settings.md").read_text()
    read = {name for module in READERS for name in READ.findall((ROOT / "dashboard" / module).read_text())}
    read |= {setting.variable for setting in SETTINGS.values()}
    assert {"DATABASE_URL", "SECRET_KEY", "EMAIL_URL", "ROWLOCK_LEASE_SECONDS"} <= read
    assert sorted(name for name in read if f"`{name}`" not in text) == []


def test_the_commands_page_names_every_command():
    text = (ROOT / "docs" / "commands.md").read_text()
    ours = sorted(name for name, app in get_commands().items() if app in APPS)
    assert [name for name in ours if not re.search(rf"`{name}[` ]", text)] == []
