"""docs/locks.md: its examples are run as they stand there."""

import os
import re
import subprocess

import pytest
from django.conf import settings
from django.db import connection

from dashboard.embedded import cluster
from tests.commands import database_url

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = (settings.BASE_DIR / "docs" / "locks.md").read_text()


def block(kind):
    [found] = re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return found


def test_the_demonstration_takes_what_both_jobs_take(capsys):
    exec(compile(block("python"), "docs/locks.md", "exec"), {"__name__": "demonstration"})
    seconds = float(re.fullmatch(r"both ended after (.+) s\n", capsys.readouterr().out)[1])
    assert seconds >= 3.5


def test_the_script_in_another_language():
    programs = next(cluster.package().glob("pginstall*")) / "bin"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "DATABASE_URL": database_url()}
    script = ["sh", "-euc", block("sh")]
    fences = []
    for _ in range(2):
        done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        said = re.fullmatch(r"reporting under fence (\d+)\nt\n", done.stdout)
        fences.append(int(said[1]))
    assert fences[0] < fences[1]
    with connection.cursor() as cursor:
        cursor.execute("SELECT rowlock_lock_acquire('nightly-report', 'me', '1 min')")
    assert subprocess.run(script, env=environment, capture_output=True, timeout=60).returncode == 75


def test_the_fenced_write_refuses_an_older_fence():
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE report (id int, body text, fence bigint)")
        cursor.execute("INSERT INTO report VALUES (1, '', 0)")
        written = []
        for fence in (5, 7, 5, 7):
            cursor.execute(block("sql"), {"id": 1, "body": "x", "fence": fence})
            written.append(cursor.rowcount)
        cursor.execute("DROP TABLE report")
    assert written == [1, 1, 0, 1]
