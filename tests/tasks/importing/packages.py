"""The other queues' own packages, in an environment under `var/`, and the tables that they make and fill.

The tables lie in the schema `theirs` of the test's database, behind Rowlock's own on the search path.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from django.db import connection

from tests.commands import database_url
from tests.databases import ROOT

PINS = ROOT / "tests" / "requirements" / "importing.txt"
HOME = ROOT / "var" / "importing"
SEARCH_PATH = "-c search_path=public,theirs"


def python() -> Path:
    """The interpreter that has the packages; made on first use, and again when the pins change."""
    HOME.mkdir(parents=True, exist_ok=True)
    program, stamp = HOME / "python" / "bin" / "python", HOME / "python" / "stamp"
    digest = hashlib.sha256(PINS.read_bytes() + sys.version.encode()).hexdigest()
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of tests share it
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(HOME / "python", ignore_errors=True)
            run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, HOME / "python")
            pins = ("--require-hashes", "--requirement", PINS)
            run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", program, *pins)
            stamp.write_text(digest)
    return program


def run(*line: object, **variables: str) -> None:
    done = subprocess.run(list(map(str, line)), env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def filled(*fillings: str) -> Iterator[None]:
    """The schema of the other queues with these fillings of `fill.py`, dropped at the end."""
    url = database_url()
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA IF EXISTS theirs CASCADE")
        cursor.execute("CREATE SCHEMA theirs")
    try:
        run(python(), Path(__file__).with_name("fill.py"), *fillings, DATABASE_URL=url, PGOPTIONS="")
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA IF EXISTS theirs CASCADE")
