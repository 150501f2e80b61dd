"""The look at sessions and locks: who blocks whom, with which lock, and how the tree is built."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg
import pytest
from django.contrib.auth.models import User

from dashboard.embedded import cluster
from dashboard.embedded.server import running
from dashboard.locks import activity
from dashboard.locks.tree import DEEPEST, Node, Session, build_tree, circles, tree_lines
from orders.models import Account
from tests.postgres import THROW_AWAY
from tests.sessions import session, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)
LOCK = "SELECT 1 FROM orders_account WHERE id = %s FOR UPDATE"


@pytest.fixture
def account() -> Account:
    return Account.objects.create(owner=User.objects.create_user("anna"))


@contextmanager
def waiting(statement: str, parameters: list[object], name: str) -> Iterator[psycopg.Connection]:
    """A session that waits in `statement` until the block ends."""
    with session(name) as blocked:
        blocked.execute("SELECT 1")
        thread = threading.Thread(target=_execute_until_cancelled, args=(blocked, statement, parameters))
        thread.start()
        wait_until_blocked(blocked.info.backend_pid)
        yield blocked
        blocked.cancel_safe()
        thread.join(10)


def _execute_until_cancelled(conn: psycopg.Connection, statement: str, parameters: list[object]) -> None:
    with pytest.raises(psycopg.errors.QueryCanceled):
        conn.execute(statement, parameters)


def pids(nodes: tuple[Node, ...]) -> list[int]:
    return [node.session.pid for node in nodes]


def test_a_chain_of_row_waits_is_a_chain_in_the_tree(account: Account, django_assert_num_queries) -> None:
    with (
        session("psql") as root,
        session("rowlock:test") as bystander,
    ):
        root.execute(LOCK, [account.pk])
        bystander.execute("SELECT 1")
        with (
            waiting(LOCK, [account.pk], "rowlock:worker:7f") as first,
            waiting(LOCK, [account.pk], "rowlock:cmd:transfer") as second,
        ):
            # The sessions, the locks, the locked tables, and the row in a transaction with limits of its own.
            with django_assert_num_queries(7):
                seen = activity.read()
            [top] = seen.roots
            assert pids((top,)) == [root.info.backend_pid]
            assert pids(top.blocked) == [first.info.backend_pid]
            assert pids(top.blocked[0].blocked) == [second.info.backend_pid]
            assert top.victims == 2
            assert top.blocked[0].waits_for is not None
            assert top.blocked[0].waits_for.locktype == "transactionid"
            assert top.blocked[0].blocked[0].waits_for is not None
            assert top.blocked[0].blocked[0].waits_for.locktype == "tuple"
            assert str(top.blocked[0].session.identity) == "worker 7f"
            assert bystander.info.backend_pid in seen.by_pid
            assert {s.pid for s in seen.blocked} == {first.info.backend_pid, second.info.backend_pid}
            assert {lock.locktype for lock in seen.locks if lock.granted} == {"tuple"}
            held = {lock.locktype for lock in activity.read(with_held=True).locks if lock.granted}
            assert held >= {"tuple", "relation", "transactionid"}


def test_advisory_waits_are_called_by_their_name() -> None:
    sweep = "SELECT pg_advisory_lock(hashtext('rowlock:sweep'), hashtext(current_schema()))"
    with session() as holder:
        holder.execute(sweep)
        with waiting(sweep, [], "rowlock:test") as blocked:
            waits = [lock for lock in activity.read().locks if not lock.granted]
            assert [(lock.pid, lock.locktype, lock.name) for lock in waits] == [
                (blocked.info.backend_pid, "advisory", "the sweep for dead workers")
            ]
            assert waits[0].wait_seconds is not None


def test_relation_waits_name_the_table(account: Account) -> None:
    with session() as holder:
        holder.execute("LOCK TABLE orders_account")
        with waiting(LOCK, [account.pk], "rowlock:test"):
            [waits] = [lock for lock in activity.read().locks if not lock.granted]
            assert (waits.locktype, waits.relation) == ("relation", "orders_account")


def test_nobody_waiting_reads_no_locks(django_assert_num_queries) -> None:
    with session() as holder, django_assert_num_queries(1):
        holder.execute("SELECT 1")
        assert activity.read().roots == ()


def test_f21_a_capped_look_says_so_and_keeps_those_that_wait_and_their_blockers(account: Account) -> None:
    with session() as root:
        root.execute(LOCK, [account.pk])
        with waiting(LOCK, [account.pk], "rowlock:test") as blocked:
            seen = activity.read(limit=1)
            assert seen.is_capped
            assert [s.pid for s in seen.sessions] == [blocked.info.backend_pid, root.info.backend_pid]


def made(pid: int, *blocked_by: int) -> Session:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    return Session(pid, "", None, None, now, now, "active", None, None, "", 1.0, 1.0, blocked_by)


def test_a_queue_for_one_row_is_a_chain_and_not_every_path() -> None:
    """Each of 60 waits for all before it: the tree of every path would never end."""
    [root] = build_tree([made(0), *(made(pid, *range(pid)) for pid in range(1, 60))])
    assert root.victim_pids() == list(range(1, 60))


def test_a_statement_that_many_sessions_have_is_redacted_once(monkeypatch) -> None:
    """Beside 500 idle workers, whose last statement is long, redaction took two thirds of the overview's time."""
    long, redacted = f"SELECT 'secret' -- {'x' * 1000}", []
    monkeypatch.setattr(activity, "redact_query", lambda query, **_: redacted.append(query) or "redacted")
    with session("one") as one, session("two") as two:
        one.execute(long), two.execute(long)
        shown = [found.query for found in activity.read().sessions if found.application_name in ("one", "two")]
    assert shown == ["redacted", "redacted"]
    assert len([query for query in redacted if query.startswith("SELECT 'secret'")]) == 1


def test_a_circle_is_cut_and_told() -> None:
    sessions = [made(1, 2), made(2, 3), made(3, 1), made(0, 3), made(4)]
    [root] = build_tree(sessions)
    assert root.session.pid == 1, "not at 0, which only waits for the circle"
    assert sorted(root.victim_pids()) == [0, 2, 3]
    assert circles(sessions) == [[1, 2, 3]]


def test_two_circles_are_two() -> None:
    assert circles([made(1, 2), made(2, 1), made(3, 4), made(4, 3, 1)]) == [[1, 2], [3, 4]]


def test_a_tree_is_written_line_by_line_and_cut_at_its_cap() -> None:
    """A queue of a thousand: nothing recurses, and every level that opens is closed."""
    roots = build_tree([made(0), *(made(pid, pid - 1) for pid in range(1, 1000))])
    found = tree_lines(roots, cap=200)
    assert [line.level for line in found] == list(range(1, 201))
    assert [line.opens for line in found] == [True] * 199 + [False]
    assert len(found[-1].closes) == 199
    assert max(line.indent for line in found) == DEEPEST


def test_levels_that_end_are_closed_before_the_next_line() -> None:
    found = tree_lines(build_tree([made(1), made(2, 1), made(3, 2), made(4, 1), made(5), made(6, 5)]))
    assert [(line.node.session.pid, line.opens, len(line.closes)) for line in found] == [
        (1, True, 0), (2, True, 0), (3, False, 1), (4, False, 1), (5, True, 0), (6, False, 1),
    ]  # fmt: skip


def test_the_root_with_the_most_victims_stands_first() -> None:
    roots = build_tree([made(1), made(2, 1), made(3), made(4, 3), made(5, 3)])
    assert pids(roots) == [3, 1]


def test_a_blocker_that_is_gone_leaves_its_victims_out_of_the_tree() -> None:
    assert build_tree([made(2, 1)]) == ()


def test_a_prepared_transaction_is_a_root_with_its_name(private_server_with_prepared: psycopg.Connection) -> None:
    """It has no session, so pg_blocking_pids() says 0; its victims must not drop out of the tree."""
    prepared = private_server_with_prepared
    prepared.execute("CREATE TABLE t (id int)")
    prepared.execute("BEGIN")
    prepared.execute("LOCK TABLE t")
    prepared.execute("PREPARE TRANSACTION 'billing-7'")
    seen = activity.outsiders_of(prepared, [made(4711, activity.PREPARED)], [])
    assert [(found.pid, found.label) for found in seen] == [(0, "prepared transaction billing-7")]
    assert build_tree([made(4711, activity.PREPARED), *seen])[0].victims == 1


@pytest.fixture
def private_server_with_prepared() -> Iterator[psycopg.Connection]:
    """A session of a server that allows prepared transactions."""
    with (
        cluster.folder() as folder,
        running(folder / "home", runs="a test", settings={**THROW_AWAY, "max_prepared_transactions": "2"}) as server,
        psycopg.connect(server.url, autocommit=True) as conn,
    ):
        yield conn
