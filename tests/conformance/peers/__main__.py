"""The tests that django-tasks has for its own backends, run against ours: `python -m tests.conformance.peers DIR`.

DIR is a checkout of django-tasks at the installed version. `backends.py` lists the tests that are about something else,
each with its reason. Those of django-tasks-db are left out: they read its own table and count its own queries.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests import databases
from tests.databases import ROOT
from tests.postgres import throw_away_server


def main(checkout: str) -> int:
    with throw_away_server() as server:
        url = databases.named(server.url, "peers")
        databases.migrate(url)
        variables = {
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "ROWLOCK_APPS": "tests",  # theirs
            "SECRET_KEY": "of the tests alone",
            "ROWLOCK_MAX_ATTEMPTS": "1",  # the framework's own backends do not retry
            "ALLOWED_HOSTS": "testserver",
        }
        script = Path(__file__).with_name("run.py")
        return subprocess.run([sys.executable, script, checkout], cwd=ROOT, env={**os.environ, **variables}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
