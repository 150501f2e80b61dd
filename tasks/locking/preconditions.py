"""Preconditions for locking rows one by one; every refusal says why and what to do instead."""

from collections.abc import Iterator
from typing import Any

from django.db import NotSupportedError, connections, models
from django.db.models.expressions import Subquery
from django.db.models.query import ModelIterable
from django.db.models.sql import Query


def refuse_unlockable(queryset: Any) -> None:
    """Raise TypeError for anything but a queryset, NotSupportedError if PostgreSQL could not lock its rows."""
    if not isinstance(queryset, models.QuerySet):
        raise TypeError(f"Pass a QuerySet such as Order.objects.all(), not {queryset!r}.")
    query = queryset.query
    problem = (
        "it is sliced; give limit=… to each() instead" if query.is_sliced
        else f"it is a {query.combinator}; lock the rows of one query" if query.combinator
        else "it gives values, not model instances" if queryset._iterable_class is not ModelIterable
        else "it is distinct, and PostgreSQL cannot lock such rows; use Exists() in a filter" if query.distinct
        else "it is grouped, and PostgreSQL cannot lock such rows; use a Subquery" if query.group_by is not None
        else "it locks its rows already; leave select_for_update() out, each() does it" if query.select_for_update
        else ""
    )  # fmt: skip
    if problem:
        raise NotSupportedError(f"The rows of this queryset cannot be locked: {problem}.")


def refuse_text(of: Any) -> None:
    """Raise TypeError for `of='self'`, which Django would read as the tables s, e, l and f."""
    if isinstance(of, str):
        raise TypeError(f"of must be a tuple of names: write of=({of!r},).")


def refuse_open_transaction(using: str) -> None:
    """Raise RuntimeError inside a transaction, except the one that a TestCase puts around each test.

    The error names ATOMIC_REQUESTS where that is the cause.
    """
    connection = connections[using]
    blocks = [block for block in connection.atomic_blocks if not block._from_testcase]  # type: ignore[attr-defined]
    if not blocks and (connection.in_atomic_block or connection.get_autocommit()):
        return
    if not blocks:
        cause = "Autocommit is off: turn it on again with transaction.set_autocommit(True)."
    elif len(blocks) == 1 and connection.settings_dict["ATOMIC_REQUESTS"]:
        cause = "ATOMIC_REQUESTS opened it: decorate the view with @transaction.non_atomic_requests."
    else:
        cause = "Move the call out of atomic(); in a task, run it on a worker whose --strategy is not pessimistic."
    raise RuntimeError(f"This cannot run inside a transaction: every row would stay locked until it ends. {cause}")


def refuse_isolation(using: str) -> None:
    """Raise NotSupportedError above READ COMMITTED. It asks the session, whose default may come from the server."""
    with connections[using].cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        level = cursor.fetchone()[0]
    if level not in ("read committed", "read uncommitted"):  # to PostgreSQL they are the same
        raise NotSupportedError(
            f"A second look needs READ COMMITTED, and this connection runs at {level.upper()}: it would see what the "
            "first one saw. Set the database's isolation level to READ COMMITTED."
        )


def reads_other_tables(query: Query) -> bool:
    """True if the criteria use other tables, by a join or a subquery."""
    return len(query.alias_map) > 1 or any(isinstance(node, (Query, Subquery)) for node in _nodes(query.where))


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    if isinstance(expression, (Query, Subquery)):
        return
    for child in expression.get_source_expressions():
        if hasattr(child, "get_source_expressions"):
            yield from _nodes(child)
