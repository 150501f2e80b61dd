"""Parts that print what they measure, and have servers of their own: run as processes, and quoted in the report."""

import subprocess
import sys

from tests.benchmarks.report import Part
from tests.databases import ROOT

PARTS = {
    "recovery": "Recovery: from kill -9 of a worker until its task runs elsewhere",
    "lost_races": "Lost races: several processes that lock the same rows, double-checked",
    "pages": "Pages of the dashboard beside many tasks and sessions",
}


def run(name: str) -> Part:
    """Shown while it runs. Raises CalledProcessError when it fails."""
    line = [sys.executable, "-m", f"tests.benchmarks.{name}"]
    lines: list[str] = []
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for text in process.stdout or ():
            print(text, end="", file=sys.stderr, flush=True)
            lines.append(text)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, line)
    return Part(name, PARTS[name], text="".join(lines))
