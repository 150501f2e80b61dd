"""docs/asvs.md and its list of evidence name what is there, and docs/SECURITY.md files that are."""

import re

import pytest

from tests.databases import ROOT

ASVS = "\n".join((ROOT / "docs" / name).read_text() for name in ("asvs.md", "measurements/asvs.txt"))
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in ASVS.splitlines() if re.match(r"\| \d", line)]
# Level 1 of version 5.0.0, by chapter and section: how many requirements each has.
LEVEL_1 = (
    "1.2.1-5 1.3.1-2 1.5.1 2.1.1 2.2.1-2 2.3.1 3.2.1-2 3.3.1 3.4.1-2 3.5.1-3 4.1.1 4.4.1 5.2.1-2 5.3.1-2 6.1.1 6.2.1-8 "
    "6.3.1-2 6.4.1-2 7.2.1-4 7.4.1-2 8.1.1 8.2.1-2 8.3.1 11.3.1-2 11.4.1 12.1.1 12.2.1-2 13.4.1 14.2.1 14.3.1 15.1.1 "
    "15.2.1 15.3.1"
)


def numbers(text: str) -> list[str]:
    """Expand lists and ranges of requirements: 6.2.1, 6.2.6-8."""
    found = []
    for part in text.replace(",", " ").replace("\u2013", "-").split():
        first, _, last = part.partition("-")
        section, _, number = first.rpartition(".")
        found += [f"{section}.{each}" for each in range(int(number), int(last.rpartition(".")[2] or number) + 1)]
    return found


def test_every_requirement_of_level_1_is_in_one_row():
    tables = re.findall(r"^## Level 1\b(.*?)^## ", ASVS, re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| (\d[^|]*) \|", "".join(tables), re.MULTILINE)
    listed = [number for cell in cells for number in numbers(cell)]
    assert sorted(listed) == sorted(numbers(LEVEL_1))


def test_what_is_met_has_evidence_and_what_is_not_a_reason():
    assert {row[2] for row in ROWS} == {"met", "unmet", "n/a", "deploy"}
    assert [row[0] for row in ROWS if len(row) != 4 or not row[3]] == []


@pytest.mark.parametrize("name", ["asvs.md", "measurements/asvs.txt", "SECURITY.md", "roles.md"])
def test_files_that_are_named_exist(name):
    text = (ROOT / "docs" / name).read_text()
    named = re.findall(r"`((?:tests|dashboard|tasks|orders|docs)/[\w./]+|[\w-]+\.(?:txt|md))`", text)
    linked = [f"docs/{target}" for target in re.findall(r"\]\(([\w.-]+)\)", text)]
    assert [path for path in [*named, *linked] if not (ROOT / path).exists()] == []
