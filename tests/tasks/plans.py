"""The plan that PostgreSQL chooses for a statement, as a tree that tests can ask."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

TABLE = "tasks_task"
PARAMETER = re.compile(r"%\((\w+)\)s")
EXPLAIN = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT JSON) EXECUTE explained{}")


@dataclass(frozen=True)
class Plan:
    """One node of a plan that was run, with the nodes below it."""

    node: Mapping[str, Any]

    def __iter__(self) -> Iterator["Plan"]:
        yield self
        for child in self.node.get("Plans", []):
            yield from Plan(child)

    def scans(self, table: str = TABLE) -> set[str]:
        """How the table is read."""
        return {plan.node["Node Type"] for plan in self if plan.node.get("Relation Name") == table} - {"ModifyTable"}

    def rows_read(self, table: str = TABLE) -> int:
        """How many rows of the table were looked at, those included that a filter threw away."""
        reads = (plan.node for plan in self if plan.node.get("Relation Name") == table)
        return int(sum(_rows(node) for node in reads if node["Node Type"] != "ModifyTable"))

    def rows_sorted(self) -> int:
        """How many rows the largest sort had to order."""
        return max((int(_rows(plan.node)) for plan in self if "Sort" in plan.node["Node Type"]), default=0)

    def rows_met(self) -> int:
        """How many rows every step together handed on or threw away: a join that is quadratic shows here alone."""
        return int(sum(_rows(plan.node) for plan in self))

    def rows_changed(self) -> int:
        return int(sum(_rows(plan.node) for plan in self if plan.node["Node Type"] == "ModifyTable"))


def explain(
    connection: psycopg.Connection, statement: str, params: Mapping[str, Any], *, mode: str | None = "force_custom_plan"
) -> Plan:
    """Run the statement, roll it back, and give its plan.

    Args:
        statement: with named placeholders, as the code has it.
        params: a value for each; lists become arrays.
        mode: `force_custom_plan` for a plan made for these values, `force_generic_plan` for one made for any, None for
            what the session itself would do.
    """
    names = list(dict.fromkeys(PARAMETER.findall(statement)))
    numbered = PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", statement)
    values = sql.SQL(", ").join(sql.Literal(params[name]) for name in names)
    call = EXPLAIN.format(sql.SQL("({})").format(values) if names else sql.SQL(""))
    with connection.transaction(force_rollback=True):
        connection.execute("DEALLOCATE ALL")
        if mode:
            connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        connection.execute(f"PREPARE explained AS {numbered}")
        [(plans,)] = connection.execute(call)
    return Plan(plans[0]["Plan"])


def _rows(node: Mapping[str, Any]) -> float:
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return (node["Actual Rows"] + removed) * node["Actual Loops"]
