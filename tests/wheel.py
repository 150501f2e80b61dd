"""The wheel of this checkout, built once a run, and environments that others' projects are made in.

Several processes of pytest-xdist share them: the first to ask makes a thing, the others wait for its lock.
"""

import contextlib
import fcntl
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tasks
from tests.databases import ROOT

HOW_TO_GET_IT = "The tests build the wheel with `build` and `hatchling`: install the test requirements (`make test`)."
PINS = ROOT / "tests" / "requirements"
# The file that pins each version of Django; all else is pinned by requirements.txt.
DJANGOS = {"5.2": ROOT / "requirements.txt", "6.0": PINS / "django-6.0.txt", "6.1": PINS / "next.txt"}
DJANGO = re.compile(r"^django==.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def wheel(run_folder: Path) -> Path:
    """The wheel of this checkout, built by way of the source distribution."""
    folder = run_folder / "dist"
    with once(folder) as is_first:
        if is_first:
            build(folder)
    [wheel] = folder.glob(f"rowlock-{tasks.__version__}-*.whl")
    return wheel


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run share; removed at the end if every test passes."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextlib.contextmanager
def once(folder: Path) -> Iterator[bool]:
    """True for the one that shall make `folder`; the others wait until it has done so, or try themselves."""
    with folder.with_name(f"{folder.name}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        yield not lock.read()
        lock.write("made")


def build(folder: Path) -> None:
    assert all(importlib.util.find_spec(name) for name in ("build", "hatchling")), HOW_TO_GET_IT
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def environment(folder: Path, wheel: Path, python: str, django: str) -> Path:
    """A fresh environment of this Python with the wheel and what it requires: the versions pinned, by their hashes."""
    with once(folder) as is_first:
        if is_first:
            constraints = folder.with_name(f"{folder.name}.txt")
            constraints.write_text(pins(django))
            uv("venv", "--clear", "--python", python, folder)
            install = ["pip", "install", "--python", folder, "--constraints", constraints, wheel]
            # Asked first, the cache answers at once; what it lacks comes from the registry.
            if uv(*install, "--offline", is_needed=False):
                uv(*install)
    return folder


def pins(django: str) -> str:
    """requirements.txt, with this version of Django in place of its own."""
    found = DJANGO.search(DJANGOS[django].read_text())
    assert found, f"{DJANGOS[django]} pins no Django"
    return DJANGO.sub(lambda _: found.group(), DJANGOS["5.2"].read_text())


def uv(*arguments: object, is_needed: bool = True) -> int:
    """Run uv; its exit status. Files are links into its cache, so that an environment takes a second and no space."""
    variables = {**os.environ, "UV_LINK_MODE": "hardlink", "UV_NO_PROGRESS": "1"}
    argv = [sys.executable, "-m", "uv", *map(str, arguments)]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True)
    assert not is_needed or done.returncode == 0, done.stderr
    return done.returncode
