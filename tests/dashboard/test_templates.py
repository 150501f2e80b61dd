"""The layout of templates: short lines, and includes from the own folder or `shared/` only."""

import re
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).parents[2] / "templates"
LONGEST_LINE = 120
INCLUDE = re.compile(r'{% include "([^"]+)"')
OURS = [path.relative_to(TEMPLATES) for path in sorted(TEMPLATES.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("name", OURS, ids=str)
def test_no_line_is_too_long(name):
    lines = (TEMPLATES / name).read_text().splitlines()
    assert [line for line in lines if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize("name", OURS, ids=str)
def test_it_includes_from_its_own_folder_or_the_shared_one(name):
    included = [Path(other) for other in INCLUDE.findall((TEMPLATES / name).read_text())]
    ours = [other for other in included if (TEMPLATES / other).exists()]  # the others are Django's
    assert {other.parent for other in ours} <= {name.parent, Path("shared")}
    assert set(included) - set(ours) <= {Path("admin/color_theme_toggle.html")}
