"""Print the bill of materials of what `make run` installs: CycloneDX 1.6, made from the pins and their hashes alone.

`make sbom > rowlock.cdx.json`. The same pins always give the same text.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]*\S))?", re.MULTILINE)
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Pin(NamedTuple):
    """A pinned package; `hashes` are those of its files, of which one is installed; `marker`: where it is."""

    name: str
    version: str
    marker: str
    hashes: list[str]


def pins(text: str) -> list[Pin]:
    """The packages of a requirements file."""
    found = list(PIN.finditer(text))
    ends = [*(one.start() for one in found[1:]), len(text)]
    parts = [text[one.end() : end] for one, end in zip(found, ends, strict=True)]
    return [
        Pin(one["name"], one["version"], one["marker"] or "", HASH.findall(part))
        for one, part in zip(found, parts, strict=True)
    ]


def component(pin: Pin) -> dict[str, Any]:
    url = f"pkg:pypi/{re.sub(r'[-_.]+', '-', pin.name).lower()}@{pin.version}"
    properties = [{"name": "sha256 of a file", "value": value} for value in pin.hashes]
    properties += [{"name": "environment marker", "value": pin.marker}] if pin.marker else []
    own = {"type": "library", "bom-ref": url, "name": pin.name, "version": pin.version, "purl": url}
    return {**own, "properties": properties}


def document() -> dict[str, Any]:
    """The bill of materials of this checkout."""
    [version] = VERSION.findall((ROOT / "tasks" / "__init__.py").read_text())
    parts = [component(pin) for pin in pins((ROOT / "requirements.txt").read_text())]
    own = {"type": "application", "bom-ref": "rowlock", "name": "rowlock", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": parts,
        "dependencies": [{"ref": "rowlock", "dependsOn": [part["bom-ref"] for part in parts]}],
    }


if __name__ == "__main__":
    print(json.dumps(document(), indent=2))
