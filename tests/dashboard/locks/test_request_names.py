"""A session of the web server that changes something says which request it serves."""

import threading

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from django.db.backends.utils import CursorWrapper

from dashboard.locks import activity
from dashboard.locks.history import Sampler
from dashboard.locks.identity import naming, split
from dashboard.models import LockWait
from orders.models import Account
from tests.dashboard.scenes import LOCK_ACCOUNT, Scene
from tests.people import client_of
from tests.sessions import wait_until_blocked
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_every_statement_of_a_post_names_it_and_none_of_a_get(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[str] = []
    execute = CursorWrapper._execute
    monkeypatch.setattr(
        CursorWrapper, "_execute", lambda self, sql, *rest: executed.append(sql) or execute(self, sql, *rest)
    )
    client = client_of("Operators")
    for method, named in ((client.post, True), (client.get, False)):
        executed.clear()
        method("/admin/ops/locks/")
        assert executed
        assert {text.startswith("/* POST /admin/ops/locks/ */ ") for text in executed} == {named}


@pytest.mark.parametrize("path", ["/a*/DROP TABLE x/*/", "/a%s%(b)s", "/a' OR '1", "/a\n--", "/" + "a" * 5000, "/ы"])
def test_no_address_leaves_the_comment(path: str) -> None:
    seen: list[str] = []
    naming(path)(lambda sql, *rest: seen.append(sql), "SELECT 1", None, False, None)
    [text] = seen
    assert text.endswith(" */ SELECT 1")
    assert text.count("*/") == 1
    assert not set("%'\n") & set(text)
    assert len(text) < 200
    assert split(text)[1] == "SELECT 1"


def test_the_tree_and_the_history_say_which_request_waits() -> None:
    account = Account.objects.create(owner=User.objects.create_user("owner"))
    with Scene() as scene:
        scene.holding("psql", LOCK_ACCOUNT, [account.pk])
        pids: list[int] = []
        thread = threading.Thread(target=lock_as_request, args=(account.pk, pids))
        thread.start()
        wait_until(lambda: bool(pids))
        wait_until_blocked(pids[0])
        session = activity.read().by_pid[pids[0]]
        Sampler(connection).sample()
        scene.sessions["psql"].rollback()
        thread.join(10)
    assert str(session.identity) == "web POST /admin/orders/account/7/change/"
    assert session.is_ours
    assert session.query.startswith("SELECT 1 FROM orders_account")
    assert LockWait.objects.get().blocked_who == "rowlock:web:POST /admin/orders/account/7/change/"


def lock_as_request(account_id: int, pids: list[int]) -> None:
    """As a request of the web server would, in a thread and session of its own."""
    mine = connections["default"]
    try:
        with mine.execute_wrapper(naming("/admin/orders/account/7/change/")), mine.cursor() as cursor:
            cursor.execute("SET application_name = 'rowlock:web'")
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])
            cursor.execute(LOCK_ACCOUNT, [account_id])
    finally:
        mine.close()


def test_another_program_cannot_pass_for_a_request() -> None:
    with Scene() as scene:
        scene.holding("psql", "/* POST /admin/ */ SELECT 1")
        session = activity.read().by_pid[scene.pid("psql")]
    assert (str(session.identity), session.may_be_signalled) == ("psql", True)
