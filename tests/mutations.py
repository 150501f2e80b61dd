"""Mutation proof: remove each guard from a copy of the last commit and run the tests that must fail.

`python -m tests.mutations [WORD]…` tries the guards whose name contains one of the words; all of them take a quarter of
an hour. The exit status is 1 if a guard can go without a failing test.
"""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.mutants import MATRIX, MUTANTS, Mutant
from tests.mutants_of_pages import GUARDED_PAGES, PAGES
from tests.mutants_of_projects import PROJECTS
from tests.mutants_of_workers import WORKERS
from tests.postgres import throw_away_server

ROOT = Path(__file__).resolve().parent.parent
REQUIRE = re.compile(r"^( +)(?:rights\.)?require\(request\.user, (.+)\)$", re.MULTILINE)
FAILED = re.compile(r"^(?:FAILED|ERROR) \S+?::(\S+)", re.MULTILINE)
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
            print(f"| {mutant.guard} | `{mutant.where}` | {noticed or '**none**'} |", flush=True)
    return 1 if survivors else 0


def check_out(folder: Path) -> None:
    """Use the last commit, so that uncommitted work does not matter."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def chosen(words: list[str], copy: Path) -> list[Mutant]:
    every = [*MUTANTS, *WORKERS, *PAGES, *PROJECTS]
    every += [mutant for module in GUARDED_PAGES for mutant in rights(module, copy)]
    return [mutant for mutant in every if not words or any(word in mutant.guard for word in words)]


def rights(module: str, copy: Path) -> list[Mutant]:
    """One mutant for each right that this module of pages requires, without that check."""
    text = source_of(module, copy).text

    def without(right: str) -> str:
        return REQUIRE.sub(lambda line: f"{line[1]}pass" if line[2] == right else line[0], text)

    required = dict.fromkeys(right for _, right in REQUIRE.findall(text))
    name = module.rpartition(".")[2]
    return [Mutant(f"right {right} of {name}", module, text, without(right), (MATRIX,)) for right in required]


@dataclass(frozen=True)
class Source:
    """The text of one object, and what stands before and after it in its file."""

    file: Path
    before: str
    text: str
    after: str

    def write(self, text: str) -> None:
        """Put `text` in the object's place."""
        self.file.write_text(self.before + text + self.after)


def source_of(where: str, root: Path) -> Source:
    """Find a module or an object in a module by its dotted name, or a file by its path."""
    if "/" in where:
        return Source(root / where, "", (root / where).read_text(), "")
    parts = where.split(".")
    for length in range(len(parts), 0, -1):
        file = root.joinpath(*parts[:length])
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        if file.exists():
            return cut_out(file, parts[length:])
    raise LookupError(f"no module holds {where}")


def cut_out(file: Path, names: list[str]) -> Source:
    """Cut a file around the object that `names` leads to, class by class; its decorators belong to it."""
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    body: list[ast.stmt] = ast.parse(whole).body
    first, last = 1, len(lines)
    for name in names:
        found = [node for node in body if name in names_of(node)]
        if len(found) != 1:
            raise LookupError(f"{file} defines {name} {len(found)} times")
        node = found[0]
        decorators = getattr(node, "decorator_list", [])
        first, last = min(each.lineno for each in (*decorators, node)), node.end_lineno or node.lineno
        body = getattr(node, "body", [])
    return Source(file, "".join(lines[: first - 1]), "".join(lines[first - 1 : last]), "".join(lines[last:]))


def names_of(node: ast.stmt) -> list[str]:
    """The names that a statement defines: of a function, a class, or what is assigned."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def by_whom(mutant: Mutant, copy: Path) -> str:
    """The first test that fails without the guard; an empty text if all pass."""
    source = source_of(mutant.where, copy)
    assert source.text.count(mutant.old) == 1, f"{mutant.guard}: not once in {mutant.where}"
    source.write(source.text.replace(mutant.old, mutant.new))
    database = "--create-db" if any(part in str(source.file) for part in OF_THE_DATABASE) else "--reuse-db"
    try:
        return outcome(copy, [database, *mutant.tests])
    finally:
        source.write(source.text)
        if database == "--create-db":
            outcome(copy, [database, "tests/tasks/models/test_models.py", "-k", "there_is_one_epoch"])


def outcome(copy: Path, arguments: list[str]) -> str:
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *arguments]
    try:
        run = subprocess.run(argv, cwd=copy, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"hangs for {SECONDS} s"
    if not run.returncode:
        return ""
    failed = FAILED.search(run.stdout)
    assert failed, f"no test could say anything: {run.stdout[-2000:]}{run.stderr[-2000:]}"
    return f"`{failed[1].partition('[')[0].rpartition('::')[2]}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
