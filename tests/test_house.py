"""Check the house's rules: which app may import or name which, and what a template may include."""

import ast
import re
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# dashboard → orders → tasks → Django
FORBIDDEN = {
    "tasks": {"orders", "dashboard", "tests"},
    "orders": {"dashboard", "tests"},
    "dashboard": {"tests"},
}
# Strings and templates that name an app: its label, its templates and tag libraries, the URL names of its pages.
NAMES = {
    "orders": re.compile(r"\borders\b|\borders_\w+"),
    "dashboard": re.compile(r"\bdashboard\b|\bops_\w+|\btask_pages/"),
}
# Each is imported only where the app is installed: `tests/dashboard/test_own_project.py` imports all others without it.
WITH_ORDERS = {
    "dashboard/lab/patterns/accounts.py",
    "dashboard/lab/patterns/orders.py",
    "dashboard/demo/director.py",  # loads the demo of our own project
}
# The check for a clash of app names compares the installed apps with ours.
MAY_NAME = {("tasks/checks.py", "dashboard"), ("tasks/checks.py", "orders")}
TEMPLATES = ROOT / "templates"
TEMPLATES_OF = {"tasks": TEMPLATES / "admin" / "tasks", "orders": TEMPLATES / "admin" / "orders"}
FOLDERS = ("admin/orders", "admin/tasks", "dashboard", "shared", "task_pages")
DJANGOS = "admin/color_theme_toggle.html"
INCLUDED = re.compile(r"""{%-? *include +["']([^"']+)["']""")


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


def test_the_pages_do_without_orders():
    """Orders add to the pages through `tasks.panels` alone, except their rows in the lab and the demo."""
    knowing = {str(module.relative_to(ROOT)) for module in modules("dashboard") if "orders" in set(imported(module))}
    assert knowing == WITH_ORDERS


@pytest.mark.parametrize("app", FORBIDDEN)
def test_only_compat_knows_two_frameworks(app):
    knowing = [
        str(module.relative_to(ROOT))
        for module in modules(app)
        if "django_tasks" in set(imported(module)) or "django.tasks" in dotted_imports(module)
    ]
    assert knowing == (["tasks/compat.py"] if app == "tasks" else [])


def files() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    paths = (path for app in FORBIDDEN for path in modules(app))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports_among(known: dict[str, Path], room: Callable[[str], str]) -> dict[str, set[str]]:
    """The rooms that each room imports: at the top of a file, inside a function or for type checkers."""
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            for target in targets(node, known):
                if room(target) != room(name):
                    found.setdefault(room(name), set()).add(room(target))
    return found


def targets(node: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        wholes = (f"{node.module}.{alias.name}" for alias in node.names)
        yield from (target for whole in wholes if (target := whole if whole in known else node.module) in known)


def room_of(name: str) -> str:
    """The folder below the app; a file beside the folders is a room of its own. Alerts send what attention finds."""
    room = ".".join(name.split(".")[:2])
    return "dashboard.attention" if room == "dashboard.alerts" else room


def is_folder(room: str) -> bool:
    return (ROOT / room.replace(".", "/")).is_dir()


def test_no_file_imports_itself_by_way_of_others():
    graph = imports_among(files(), lambda name: name)
    assert len(graph) > 300
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_no_folder_imports_itself_by_way_of_others():
    graph = imports_among(files(), room_of)
    folders = {room: set(filter(is_folder, others)) for room, others in graph.items() if is_folder(room)}
    assert len(folders) > 20
    TopologicalSorter(folders).prepare()


def test_an_import_inside_a_function_or_for_types_closes_a_circle(tmp_path):
    known = {"tasks.one": tmp_path / "one.py", "tasks.two": tmp_path / "two.py"}
    known["tasks.one"].write_text("def late():\n    from tasks import two\n")
    known["tasks.two"].write_text("if TYPE_CHECKING:\n    from tasks.one import late\n")
    with pytest.raises(CycleError):
        TopologicalSorter(imports_among(known, lambda name: name)).prepare()


def dotted_imports(module: Path) -> set[str]:
    """Every `django.<app>` that the module imports from."""
    found = [node.module for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ImportFrom)]
    return {".".join(name.split(".")[:2]) for name in found if name}


def named(text: str, app: str) -> bool:
    """True if the text names an app that `app` must not know."""
    return any(pattern.search(text) for name, pattern in NAMES.items() if name in FORBIDDEN[app])


def strings(module: Path) -> Iterator[str]:
    """Every text in the code, docstrings and the fixed parts of f-strings included."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("app", ["tasks", "orders"])
def test_strings_name_no_app_above(app):
    found = {(str(module.relative_to(ROOT)), text) for module in modules(app) for text in strings(module)}
    assert {pair for pair in found if named(pair[1], app)} - MAY_NAME == set()


@pytest.mark.parametrize("app", TEMPLATES_OF)
def test_templates_name_no_app_above(app):
    templates = sorted(TEMPLATES_OF[app].rglob("*.html"))
    assert templates
    assert [str(path.relative_to(ROOT)) for path in templates if named(path.read_text(), app)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_template_includes_only_from_its_own_folder_or_shared(folder):
    templates = sorted((TEMPLATES / folder).rglob("*.html"))
    assert templates
    strangers = {
        f"{path.relative_to(TEMPLATES)}: {name}"
        for path in templates
        for name in INCLUDED.findall(path.read_text())
        if not name.startswith((f"{folder}/", "shared/")) and name != DJANGOS
    }
    assert strangers == set()


@pytest.mark.parametrize(
    ("app", "text", "is_refused"),
    [
        ("tasks", 'reverse("admin:ops_locks")', True),
        ("tasks", "dashboard/_live_head.html", True),
        ("tasks", "orders.move_money", True),
        ("tasks", "task_pages/_rows.html", True),
        ("tasks", "FOR UPDATE; stops_at; the reorders", False),
        ("orders", "orders.move_money", False),
        ("orders", "admin:ops_locks", True),
    ],
)
def test_a_name_is_seen_in_a_text(app, text, is_refused):
    assert named(text, app) == is_refused


# Documented by Django, by namedtuple and by os, in spite of the underscore.
DOCUMENTED = {
    "_meta",
    "_default_manager",
    "_base_manager",
    "_state",
    "_replace",
    "_asdict",
    "_fields",
    "_make",
    "_exit",
}


@pytest.mark.parametrize("app", FORBIDDEN)
def test_only_public_names_of_libraries_are_used(app):
    private = {
        str(module.relative_to(ROOT)): sorted(names)
        for module in modules(app)
        if "migrations" not in module.parts and (names := private_names_of_others(ast.parse(module.read_text())))
    }
    assert private == {}


def private_names_of_others(tree: ast.Module) -> set[str]:
    """Attributes and imports with an underscore that this module itself does not define."""
    own: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute):
            (own if isinstance(node.ctx, ast.Store) else used).add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            used.update(alias.name for alias in node.names)
    return {name for name in used - own - DOCUMENTED if name.startswith("_") and not name.startswith("__")}
