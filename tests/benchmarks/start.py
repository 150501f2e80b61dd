"""Start-up of the commands that cron runs every minute, and what they ask the database when there is nothing to do.

A server that logs every statement tells when the first one came, and how many there were.
"""

import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from tests.benchmarks.bench import Bench
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.report import Part, Table
from tests.benchmarks.subject import Rowlock
from tests.databases import ROOT

ROUNDS = 5
SHOWN = "send_shipped_emails"
SETTINGS = {"log_statement": "all", "log_line_prefix": "%n|%d|", "log_min_messages": "warning"}
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import django; django.setup()": ["-c", "import django; django.setup()"],
    SHOWN: ["manage.py", SHOWN, "-v0"],
    "recover_tasks": ["manage.py", "recover_tasks", "-v0"],
    "queue_status": ["manage.py", "queue_status", "-v0"],
    "run_locked job -- recover_tasks": ["manage.py", "run_locked", "job", "-v0", "--", "recover_tasks", "-v0"],
}
STATEMENT = re.compile(r"^(?P<at>[0-9.]+)\|(?P<database>\w*)\|LOG:\s+(?:statement|execute [^:]*): (?P<text>.*)$")
# What opens a transaction or sets up the session; what the command asks is the rest.
FRAME = re.compile(r"(BEGIN|COMMIT|ROLLBACK|SET |RESET |SELECT set_config)")


@dataclass(frozen=True)
class Started:
    """One run: seconds in all and until its first statement; what it asked of the database."""

    seconds: float
    first: float | None
    statements: list[str]

    @property
    def questions(self) -> list[str]:
        return [text for text in self.statements if not FRAME.match(text)]


def run(scene: Bench) -> Part:
    part = scene.part("start", "Start: commands that cron runs every minute, with nothing to do")
    subject = Rowlock(scene.server.url, scene.pipe)
    subject.prepare()
    runs: dict[str, list[Started]] = {name: [] for name in COMMANDS}
    rounds = scene.rounds(ROUNDS)
    for number in range(1, rounds + 1):
        for name, words in COMMANDS.items():
            runs[name].append(started(scene, subject, words))
        scene.say(f"start, round {number} of {rounds}")
    part.tables.append(compared(runs))
    part.figures = {name: [[each.seconds, each.first] for each in found] for name, found in runs.items()}
    asked = " · ".join(f"`{text[:160]}`" for text in runs[SHOWN][-1].questions)
    part.notes = [f"What an empty `{SHOWN}` asks: {asked}"]
    return part


def compared(runs: dict[str, list[Started]]) -> Table:
    columns = [
        "milliseconds, medians",
        "to its first statement",
        "in all",
        "least",
        "most",
        "statements",
        "of them set-up",
    ]
    table = Table("Each as a process of its own", columns)
    for name, found in runs.items():
        firsts = [each.first for each in found if each.first is not None]
        all_of_it = [1000 * each.seconds for each in found]
        counts = (len(found[-1].statements), len(found[-1].statements) - len(found[-1].questions))
        first = 1000 * statistics.median(firsts) if firsts else None
        table.rows.append([name, first, statistics.median(all_of_it), min(all_of_it), max(all_of_it), *counts])
    return table


def started(scene: Bench, subject: Rowlock, words: list[str]) -> Started:
    """One run of Python with these words. Raises Unfit when it fails."""
    log = scene.server.data.parent / "server.log"
    read_from = log.stat().st_size
    environment = {**subject.environment(), "PYTHONPATH": str(ROOT)}
    began, at = time.perf_counter(), time.time()
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise Unfit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    with log.open() as lines:
        lines.seek(read_from)
        found = [match for line in lines if (match := STATEMENT.match(line)) and match["database"]]
    first = float(found[0]["at"]) - at if found else None
    return Started(seconds, first, [match["text"] for match in found])
