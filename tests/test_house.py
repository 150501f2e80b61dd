"""Check the house's rules: which app may import which."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# dashboard → orders → tasks → Django
FORBIDDEN = {
    "tasks": {"orders", "dashboard", "tests"},
    "orders": {"dashboard", "tests"},
    "dashboard": {"tests"},
}


def modules(app: str) -> list[Path]:
    return sorted((ROOT / app).rglob("*.py"))


def imported(module: Path) -> Iterator[str]:
    """The first part of every name that the module imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("app", FORBIDDEN)
def test_imports_run_one_way(app):
    assert modules(app), f"{app} has no modules: is this the root of the project?"
    upwards = {
        str(module.relative_to(ROOT)): sorted(names)
        for module in modules(app)
        if (names := set(imported(module)) & FORBIDDEN[app])
    }
    assert upwards == {}


@pytest.mark.parametrize("app", FORBIDDEN)
def test_only_compat_knows_two_frameworks(app):
    knowing = [
        str(module.relative_to(ROOT))
        for module in modules(app)
        if "django_tasks" in set(imported(module)) or "django.tasks" in dotted_imports(module)
    ]
    assert knowing == (["tasks/compat.py"] if app == "tasks" else [])


def dotted_imports(module: Path) -> set[str]:
    """Every `django.<app>` that the module imports from."""
    found = [node.module for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ImportFrom)]
    return {".".join(name.split(".")[:2]) for name in found if name}
