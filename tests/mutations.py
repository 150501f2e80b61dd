"""Mutation proof: remove each guard from a copy of the last commit and run the tests that must fail.

`python -m tests.mutations [WORD]…` tries the guards whose name contains one of the words; all of them take a quarter of
an hour. The exit status is 1 if a guard can go without a failing test.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from tests.mutants import GUARDED_PAGES, MATRIX, MUTANTS, Mutant
from tests.postgres import throw_away_server

ROOT = Path(__file__).resolve().parent.parent
REQUIRE = re.compile(r"^( +)(?:rights\.)?require\(request\.user, (.+)\)$", re.MULTILINE)
FAILED = re.compile(r"^FAILED \S+?::(\S+)", re.MULTILINE)
# A mutant that changes the tables needs a new database, and so does the next one.
OF_THE_DATABASE = ("/migrations/", "version_trigger")
SECONDS = 300


def main(words: list[str]) -> int:
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="rowlock-mutations-") as folder, throw_away_server() as server:
        copy = Path(folder)
        check_out(copy)
        os.environ["TEST_DATABASE_URL"] = server.url
        print("| guard taken out | in | test that fails |\n|---|---|---|", flush=True)
        for mutant in chosen(words, copy):
            noticed = by_whom(mutant, copy)
            survivors += not noticed
            print(f"| {mutant.guard} | `{mutant.path}` | {noticed or '**none**'} |", flush=True)
    return 1 if survivors else 0


def check_out(folder: Path) -> None:
    """Use the last commit, so that uncommitted work does not matter."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def chosen(words: list[str], copy: Path) -> list[Mutant]:
    every = [*MUTANTS, *(mutant for path in GUARDED_PAGES for mutant in rights(path, copy))]
    return [mutant for mutant in every if not words or any(word in mutant.guard for word in words)]


def rights(path: str, copy: Path) -> list[Mutant]:
    """One mutant for each right that this module of pages requires, without that check."""
    text = (copy / path).read_text()

    def without(right: str) -> str:
        return REQUIRE.sub(lambda line: f"{line[1]}pass" if line[2] == right else line[0], text)

    asked = dict.fromkeys(right for _, right in REQUIRE.findall(text))
    return [Mutant(f"right {right} of {Path(path).stem}", path, text, without(right), (MATRIX,)) for right in asked]


def by_whom(mutant: Mutant, copy: Path) -> str:
    """The first test that fails without the guard; an empty text if all pass."""
    file = copy / mutant.path
    whole = file.read_text()
    assert whole.count(mutant.old) == 1, f"{mutant.guard}: not once in {mutant.path}"
    file.write_text(whole.replace(mutant.old, mutant.new))
    database = "--create-db" if any(part in mutant.path for part in OF_THE_DATABASE) else "--reuse-db"
    try:
        return outcome(copy, [database, *mutant.tests])
    finally:
        file.write_text(whole)
        if database == "--create-db":
            outcome(copy, [database, "tests/tasks/test_models.py", "-k", "there_is_one_epoch"])


def outcome(copy: Path, arguments: list[str]) -> str:
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *arguments]
    try:
        run = subprocess.run(argv, cwd=copy, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"hangs for {SECONDS} s"
    if not run.returncode:
        return ""
    failed = FAILED.search(run.stdout)
    return f"`{failed[1].partition('[')[0].rpartition('::')[2]}`" if failed else f"pytest ended with {run.returncode}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
