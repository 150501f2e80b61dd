"""`make bench`: Rowlock beside its peers and the floors of the database, part by part, kept in docs/benchmarks.md.

Each part has a PostgreSQL of its own. `make bench ARGS="drain pickup --rounds 5"` measures these parts only.
"""

import argparse
import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import report, told
from tests.benchmarks.bench import Options, bench
from tests.benchmarks.report import Part

# In the order in which the report shows them.
PARTS = (
    "database", "waiting", "drain", "mixed", "telling", "pickup", "enqueue", "unique", "limits", "schedules",
    "growth", "archive", "idle", "locks", "start", "reach", "tracing",
)  # fmt: skip
ALL = (*PARTS, *told.PARTS)
KEPT = (*ALL, "public")  # tests/benchmarks/public measures that


def main(words: Sequence[str]) -> None:
    given = parser().parse_args(words)
    peers = given.peers and [name.strip().lower() for name in given.peers.split(",")]
    options = Options(given.rounds, given.tasks, given.seconds, given.finished, peers)
    for name in given.parts or ALL:
        part = told.run(name) if name in told.PARTS else measured(name, options)
        surroundings = report.surroundings(part.server, command(name, given))
        print(
            report.section({**vars(part), "tables": [vars(table) for table in part.tables], **surroundings}), flush=True
        )
        if not given.print:
            report.keep(given.report, part, surroundings, KEPT)


def command(name: str, given: argparse.Namespace) -> str:
    """What measures this part again in the same way."""
    told = {key: getattr(given, key) for key in ("rounds", "tasks", "seconds", "finished", "peers")}
    options = [word for key, value in told.items() if value is not None for word in (f"--{key}", str(value))]
    return f'make bench ARGS="{shlex.join([name, *options])}"'


def measured(name: str, options: Options) -> Part:
    """One part, on a server with the settings that it asks for."""
    module = importlib.import_module(f"tests.benchmarks.{name}")
    with bench(options, **getattr(module, "SETTINGS", {})) as scene:
        return module.run(scene)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    found.add_argument("parts", nargs="*", type=known, metavar="PART", help=f"of {', '.join(ALL)}; default: all")
    found.add_argument("--rounds", type=int, help="how often each is measured in turn")
    found.add_argument("--tasks", type=int, help="how many tasks a round has")
    found.add_argument("--seconds", type=float, help="how long a round of a part takes that is measured by time")
    found.add_argument("--finished", type=int, help="how many finished rows the largest table of `growth` has")
    found.add_argument("--peers", help="names, with commas; none: Rowlock and the floors alone; default: all")
    found.add_argument("--report", type=Path, default=report.FOLDER, help="the folder of the report")
    found.add_argument("--print", action="store_true", help="keep no report")
    return found


def known(name: str) -> str:
    if name not in ALL:
        raise argparse.ArgumentTypeError(f"there is no part {name!r}")
    return name


if __name__ == "__main__":
    main(sys.argv[1:])
