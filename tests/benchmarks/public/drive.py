"""Calls the harness with adapters that run natively: `drive.py HARNESS run …`, in the environment of the peers.

Its own adapters of other queues run from the checkout as they are.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
HARNESS = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(HARNESS))

from bench_harness.adapters import ADAPTERS, AdapterEntry, LaunchSpec, pg_url  # noqa: E402
from bench_harness.orchestrator import main  # noqa: E402

DEFAULTS = {"SCENARIO": "long_horizon", "JOB_WORK_MS": "1", "JOB_PAYLOAD_BYTES": "256", "BENCH_INSTANCE_ID": "0"}
ROOT = HERE.parents[2]
PYTHON = sys.executable
OURS = [os.environ["ROWLOCK_PYTHON"], "-m", "tests.benchmarks.public.run_rowlock"]
DJANGO = {"DJANGO_SETTINGS_MODULE": "tests.settings", "ROWLOCK_APPS": "tests.benchmarks.public"}


def launch(argv, variables, manifest, overrides):
    """One replica, as the harness starts it."""
    url = pg_url(manifest.db_name)
    if manifest.system == "absurd" and overrides["BENCH_INSTANCE_ID"] == "0":
        # A restarted replica finds the schema and is refused here.
        subprocess.run([str(Path(PYTHON).with_name("absurdctl")), "init"], env={**os.environ, "PGDATABASE": url})
    return LaunchSpec(argv=argv, env={**DEFAULTS, **variables, "DATABASE_URL": url, **overrides}, cwd=str(ROOT))


def entry(folder, argv, **variables):
    return AdapterEntry(bench_dir=folder, builder=lambda skip: None, launcher=partial(launch, argv, variables))


ADAPTERS["rowlock"] = entry(HERE, OURS, **DJANGO)
for name in ("procrastinate", "absurd", "pgque"):
    folder = HARNESS / f"{name}-bench"
    ADAPTERS[name] = entry(folder, [PYTHON, str(folder / "main.py")])
folder = HARNESS / "pgboss-bench"
ADAPTERS["pgboss"] = entry(folder, [os.environ["NODE"], str(folder / "main.js")], NODE_PATH=os.environ["NODE_PATH"])
sys.exit(main(sys.argv[2:]))
