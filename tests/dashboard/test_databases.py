"""What is said of a DATABASE_URL that is none, before anything else is tried."""

import os
import subprocess
import sys

import pytest

from tests.databases import ROOT


@pytest.mark.parametrize(
    "url",
    ["nonsense", "mysql://a:hidden@b/c", "postgres://", "postgres://u:hidden@h/", "postgres://u:hi#dden@h:x/n", "://"],
)
def test_an_address_of_no_postgresql_is_refused_in_one_line_without_the_password(url):
    argv = [sys.executable, "manage.py", "queue_status"]
    told = subprocess.run(argv, cwd=ROOT, env={**os.environ, "DATABASE_URL": url}, capture_output=True, text=True)
    assert told.returncode == 1
    assert told.stdout == ""
    [line] = told.stderr.splitlines()
    assert line.startswith("DATABASE_URL is not the address of a PostgreSQL database: write postgres://")
    assert "hid" not in line
