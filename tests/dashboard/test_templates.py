"""The layout of templates: short lines, includes from the own folder or `shared/` only; and rows rendered once."""

import re
from pathlib import Path

import pytest
from django.template import engines
from django.utils import translation

from dashboard.charts import SlotRow
from dashboard.locks.rows import Anchor, SignalForm, TreeRow
from dashboard.templatetags.rowlock import text_of

TEMPLATES = Path(__file__).parents[2] / "templates"
LONGEST_LINE = 120
INCLUDE = re.compile(r'{% (?:include|each) "([^"]+)"')
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


SLOTS = '{% load rowlock %}{% each "dashboard/_slot.html" rows %}'


def slot(completed: str) -> SlotRow:
    return SlotRow(f"slot-{completed}", "03:10", completed, "0", "1 ms", "2 ms", "3 ms", "4 ms")


def rendered(template: str, **context: object) -> str:
    return engines["django"].from_string(template).render(context)


def test_equal_rows_are_rendered_once():
    text_of.cache_clear()
    first = rendered(SLOTS, rows=[slot("471"), slot("472")])
    again = rendered(SLOTS, rows=[slot("472"), slot("471"), slot("473")])
    assert [first.count("<tr"), again.count("<tr")] == [2, 3]
    assert again.index("slot-472") < again.index("slot-471") < again.index("slot-473")
    assert text_of.cache_info().misses == 3


def test_a_row_is_rendered_anew_in_another_language():
    with translation.override("ru"):
        russian = rendered(SLOTS, rows=[slot("471")])
    assert 'data-label="Failed"' not in russian
    assert 'data-label="Failed"' in rendered(SLOTS, rows=[slot("471")])


def test_what_a_row_sees_beside_itself_is_what_it_was_given():
    """Two readers of equal rows have forms with tokens of their own, and nothing else of the page."""
    session = '{% load rowlock %}{% each "dashboard/_node.html" rows csrf_token=token %}'
    form = SignalForm("4711", "2026-11-20T03:12:05+00:00", may_cancel=False, command="")
    row = TreeRow(
        "4711", 1, 1, "4711", (Anchor("psql"),), None, "", "", "blocks 1", "active", "", "", "SELECT 1", (), form, ""
    )
    pages = [rendered(session, rows=[row], token=token, cannot_signal="never") for token in ("first", "second")]
    assert [page.count("csrfmiddlewaretoken") for page in pages] == [1, 1]
    assert ["first" in pages[0], "first" in pages[1], "second" in pages[1]] == [True, False, True]
