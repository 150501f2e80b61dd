"""`from tasks import …` is the public API: importable before Django is ready, typed, and listed in docs/api.md."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tasks
from tests.databases import ROOT
from tests.tasks import handlers

PAGE = (ROOT / "docs" / "api.md").read_text()
TABLE = re.search(r"^`from tasks import …`:\n\n(.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
ELSEWHERE = re.search(r"^By their own modules: (.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
IMPORTED_ALONE = "import sys, tasks; assert 'django' not in sys.modules; from tasks import RowlockError, exceptions"


def test_the_page_lists_every_public_name_once():
    listed = re.findall(r"`(\w+)`", TABLE[1])
    assert sorted(listed) == sorted(tasks.__all__)


@pytest.mark.parametrize("name", tasks.__all__)
def test_a_public_name_is_that_of_its_module(name):
    [module] = [module for module, names in tasks.MODULES.items() if name in names]
    assert getattr(tasks, name) is getattr(sys.modules[module], name)


@pytest.mark.parametrize("path", re.findall(r"`([\w.]+)`", ELSEWHERE[1]))
def test_names_of_other_modules_are_where_the_page_says(path):
    module, _, name = path.rpartition(".")
    assert hasattr(__import__(module, fromlist=[name]), name) or __import__(path, fromlist=["*"])


def test_type_checkers_read_the_same_names():
    tree = ast.parse(Path(tasks.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in tasks.MODULES]
    typed = {(node.module, alias.name) for node in imports for alias in node.names if alias.asname == alias.name}
    assert typed == {(module, name) for module, names in tasks.MODULES.items() for name in names}


def test_the_package_is_imported_without_django_and_still_has_its_modules():
    done = subprocess.run([sys.executable, "-c", IMPORTED_ALONE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_names_are_refused_in_python_s_own_words():
    with pytest.raises(AttributeError, match="module 'tasks' has no attribute 'nonsense'"):
        tasks.nonsense  # noqa: B018


@pytest.mark.django_db
def test_many_are_enqueued_by_the_public_function():
    ids = tasks.enqueue_many(handlers.add, [((1, 2), {}), ((3,), {"b": 4})])
    assert len(ids) == 2
    assert sorted(ids) == ids
