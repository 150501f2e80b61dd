"""Every SQL constant is a whole statement that PostgreSQL parses, and what two statements share is equal in both."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import Error, connection, transaction

from dashboard import series
from dashboard.lab import worker
from dashboard.lab.patterns import orders, queue
from tasks.queue import claim, shortcut, strategies, throughput

ROOT = Path(__file__).resolve().parents[2]
APPS = ("tasks", "orders", "dashboard")
BEGINS_STATEMENT = re.compile(r"\s*\(?(WITH|SELECT|INSERT INTO|UPDATE|DELETE FROM)\b")
SQL_WORDS = re.compile(r"\b(SELECT|INSERT INTO|UPDATE \w+|DELETE FROM|FROM|WHERE|JOIN|ORDER BY|GROUP BY)\s")
PARAMETER = re.compile(r"%\(\w+\)s|%s")
# A statement about any adopter's table, with keys of any type, is tried with one of ours.
SAMPLES = {
    "{table}": "tasks_task", "{key}": "id", "{column}": "version", "{begun}": "created_at", "{ended}": "finished_at",
    "unnest(NULL,": "unnest(NULL::bigint[],",
}  # fmt: skip
# They take a table's name in an identifier's place, which no parameter can hold.
OF_ANY_TABLE = {"tasks.locking.version_trigger"}
# The columns that statements name in tables of other queues; tests/tasks/importing reads the real ones.
THEIR_TABLES = """
CREATE TABLE procrastinate_jobs (id bigint, status text);
CREATE TABLE procrastinate_periodic_defers (task_name text, periodic_id text);
CREATE TABLE django_tasks_database_dbtaskresult (id uuid, status text, run_after timestamptz);
CREATE TABLE django_q_ormq (id int, lock timestamptz);
CREATE TABLE django_q_schedule (id int, repeats int);
CREATE TABLE django_celery_beat_periodictask (
    id int, crontab_id int, interval_id int, solar_id int, clocked_id int);
CREATE TABLE django_celery_beat_crontabschedule (id int);
CREATE TABLE django_celery_beat_intervalschedule (id int);
CREATE TABLE django_celery_beat_solarschedule (id int);
CREATE TABLE django_celery_beat_clockedschedule (id int);
"""
NO_STATEMENTS = {"dashboard.lab.worker.WAITS"}  # the beginnings of statements that wait


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Each product module but the migrations, which are history: its dotted name and its tree."""
    for app in APPS:
        for path in sorted((ROOT / app).rglob("*.py")):
            if "migrations" not in path.parts:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield name, ast.parse(path.read_text())


MODULES = dict(modules())


def constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The upper-case names that the module assigns, each with its value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            yield node.targets[0].id, node.value


def texts(value: ast.expr) -> list[str]:
    """The string that a constant is, or the strings of its tuple."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


STATEMENTS = [
    (f"{module}.{name}", text)
    for module, tree in MODULES.items()
    for name, value in constants(tree)
    for text in texts(value)
    if BEGINS_STATEMENT.match(text) and f"{module}.{name}" not in NO_STATEMENTS
]
SQL_NAMES = {
    f"{module}.{name}"
    for module, tree in MODULES.items()
    for name, value in constants(tree)
    if any(SQL_WORDS.search(text) for text in texts(value))
}
SHARED = {
    "the taking of a claim": (
        "), candidate AS MATERIALIZED (",
        "task.traceparent\n)",
        [shortcut.CLAIM_PLAIN, shortcut.CLAIM_BEHIND],
    ),
    "the taking of a claim that meets limits": (
        "), candidate AS MATERIALIZED (",
        "task.traceparent\n)",
        [claim.CLAIM, strategies.SWAP],
    ),
    "what is taken": (
        "        status = 'PROCESSING'",
        "cancel_requested_at = NULL",
        [claim.CLAIM, shortcut.CLAIM_PLAIN, shortcut.CLAIM_BEHIND, strategies.SWAP],
    ),
    "what a claim returns": (
        ".place, task.id",
        "task.traceparent\n)",
        [claim.CLAIM, shortcut.CLAIM_PLAIN, shortcut.CLAIM_BEHIND, strategies.SWAP],
    ),
    "what is claimed alone": (
        "row_number() OVER () AS place",
        "may_be_alone)s::boolean)",
        [claim.CLAIM, shortcut.CLAIM_PLAIN, shortcut.CLAIM_BEHIND, strategies.SWAP],
    ),
    "the line": (
        "WITH RECURSIVE every_queue",
        "mark.run_after, mark.id\n), ",
        [claim.CLAIM, strategies.READ_CANDIDATES],
    ),
    "the walk": ("walk AS (", "AS look_in\n)", [claim.CLAIM, strategies.READ_CANDIDATES]),
    "the sums": ("sum(completed)::bigint", "AS wait_buckets", [throughput.FILL_NEXT_SLOT, series.SERIES]),
}


def imports(tree: ast.Module) -> dict[str, str]:
    """The names that the module imports from others, each with its dotted name."""
    return {
        name.asname or name.name: f"{node.module}.{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def is_sql(part: ast.expr, module: str, imported: dict[str, str]) -> bool:
    """True for a text with words of SQL, and for the name of a constant that holds one."""
    if isinstance(part, ast.Constant):
        return isinstance(part.value, str) and bool(SQL_WORDS.search(part.value))
    name = ast.unparse(part)
    first, _, rest = name.partition(".")
    whole = imported.get(first, f"{module}.{first}") + (f".{rest}" if rest else "")
    return whole in SQL_NAMES


def parts_of(node: ast.AST) -> list[ast.expr]:
    """The parts that this expression puts together to one text."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return [node.left, node.right]
    if isinstance(node, ast.JoinedStr):
        return [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "replace"):
        return [node.func.value, *node.args]
    return []


@pytest.mark.django_db
def test_every_statement_is_whole():
    broken = {}
    with connection.cursor() as cursor:
        cursor.execute(worker.CREATE_LEDGER)
        cursor.execute(orders.CREATE_CACHE)
        cursor.execute(queue.CREATE_COUNTER)
        cursor.execute(THEIR_TABLES)
        for name, text in STATEMENTS:
            text = PARAMETER.sub("NULL", text).replace("%%", "%")
            for placeholder, sample in SAMPLES.items():
                text = text.replace(placeholder, sample)
            try:
                with transaction.atomic():
                    cursor.execute(f"PREPARE whole AS {text}")
                    cursor.execute("DEALLOCATE whole")
            except Error as error:
                broken[name] = str(error)
    assert broken == {}
    assert len(STATEMENTS) > 250, "they are looked for where they are no longer"


def test_no_statement_is_put_together():
    glued = [
        f"{module}:{node.lineno} {ast.unparse(node)[:90]}"
        for module, tree in MODULES.items()
        if module not in OF_ANY_TABLE
        for names in [imports(tree)]
        for node in ast.walk(tree)
        if any(is_sql(part, module, names) for part in parts_of(node))
    ]
    assert glued == []


@pytest.mark.parametrize("name", SHARED)
def test_what_statements_share_is_equal(name):
    begin, end, statements = SHARED[name]
    parts = {text[text.index(begin) : text.index(end, text.index(begin))] for text in statements}
    assert len(parts) == 1
