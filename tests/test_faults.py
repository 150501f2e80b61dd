"""Check that docs/measurements/faults.txt names the tests that inject each fault, and that all of them exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.mutants import MUTANTS
from tests.mutants_of_pages import GUARDED_PAGES, PAGES
from tests.mutants_of_projects import PROJECTS
from tests.mutants_of_workers import WORKERS
from tests.mutations import REQUIRE, source_of

ROOT = Path(__file__).resolve().parent.parent
FAULTS = [f"F{number}" for number in range(1, 22)]
ROW = re.compile(r"^\| (F\d+) \| .+? \| .+? \|$", re.MULTILINE)
TEST = re.compile(r"^(F\d+) (test_\w+)$", re.MULTILINE)
NAME = re.compile(r"test_f(\d\d)_\w+")


def rows() -> dict[str, list[str]]:
    """The tests by fault; the faults are those of the table in docs/reliability.md."""
    found: dict[str, list[str]] = {fault: [] for fault in ROW.findall((ROOT / "docs" / "reliability.md").read_text())}
    for fault, test in TEST.findall((ROOT / "docs" / "measurements" / "faults.txt").read_text()):
        found[fault].append(test)
    return found


def injecting_tests() -> set[str]:
    """Every test function that is named after a fault."""
    modules = [path for path in (ROOT / "tests").rglob("test_*.py") if "_f" in path.read_text()]
    nodes = (node for path in modules for node in ast.walk(ast.parse(path.read_text())))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef) and NAME.fullmatch(node.name)}


def test_each_fault_has_a_row_and_a_test_of_its_name():
    found = rows()
    assert list(found) == FAULTS
    for fault, names in found.items():
        assert names, f"{fault} has no test"
        assert {f"F{int(NAME.fullmatch(name)[1])}" for name in names} == {fault}


def test_the_list_names_every_such_test_and_no_other():
    named = [name for names in rows().values() for name in names]
    assert sorted(named) == sorted(injecting_tests())


@pytest.mark.parametrize("mutant", [*MUTANTS, *WORKERS, *PAGES, *PROJECTS], ids=lambda mutant: mutant.guard)
def test_each_guard_that_mutation_proof_takes_out_is_where_it_says(mutant):
    source = source_of(mutant.where, ROOT)
    assert source.text.count(mutant.old) == 1
    if source.file.suffix == ".py":
        ast.parse(source.before + source.text.replace(mutant.old, mutant.new) + source.after)  # else no test can begin
    assert all((ROOT / test).exists() for test in mutant.tests if test.startswith("tests/"))


@pytest.mark.parametrize("module", GUARDED_PAGES)
def test_each_module_of_pages_asks_for_rights_where_mutation_proof_looks(module):
    assert REQUIRE.search(source_of(module, ROOT).text)
