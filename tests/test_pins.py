"""Packages are pinned by hashes, and the bill of materials lists them."""

import json
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.sbom import ROOT, pins

FILES = [ROOT / "requirements.txt", *sorted((ROOT / "tests").rglob("requirements*/*.txt"))]
FILES += sorted((ROOT / "tests").rglob("requirements.txt"))
PINNED = re.compile(r"^[^\s#-].*$", re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_requirement_has_one_version_and_its_hashes(path):
    text = path.read_text()
    found = pins(text)
    assert len(found) == len(PINNED.findall(text)) > 0, "a line that is no pin"
    assert [pin.name for pin in found if not pin.hashes] == []
    assert not re.search(r"^--(?!hash)|://", text, re.MULTILINE), "an index or an address"


def test_the_bill_of_materials_lists_what_is_installed():
    made = subprocess.run([sys.executable, "-I", ROOT / "tests" / "sbom.py"], capture_output=True, check=True).stdout
    found = json.loads(made)
    listed = {part["name"]: part for part in found["components"]}
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert listed.keys() == {pin.name for pin in pins((ROOT / "requirements.txt").read_text())}
    assert {name: listed[name]["version"] for name in ("django", "gunicorn", "psycopg")} == {
        name: version(name) for name in ("django", "gunicorn", "psycopg")
    }
    assert listed["django"]["purl"] == f"pkg:pypi/django@{version('django')}"
    assert len({part["bom-ref"] for part in found["components"]}) == len(found["components"])
