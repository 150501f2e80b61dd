"""docs/roles.sql, as it stands there: each role does its work with it, and is refused everything else."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone

from dashboard.alerts.watching import Watcher
from dashboard.locks.history import Sampler
from dashboard.models import LockWait
from orders.models import Account
from tasks.locking import lock
from tasks.models import Attempt, Intervention, RefusedWrite
from tasks.operations import Settings, bulk
from tasks.operations.filters import TaskFilter
from tasks.support.audit import Who
from tests import processes
from tests.commands import run
from tests.dashboard.addresses import walk
from tests.dashboard.role_server import (
    APPLICATION,
    ENQUEUE,
    MIGRATE,
    MONITOR,
    OWNER,
    ROLES,
    ROLES_SQL,
    WEB,
    WORKER,
    RoleServer,
    a_row_of_everything,
    browser,
    role_server,
    said,
)
from tests.dashboard.security.test_security_matrix import address
from tests.tasks import rows
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

# What would end the walk, and the demo, which these roles have nothing of: removing it deletes tasks.
NOT_WALKED = ("login", "logout", "ops_demo_remove")
# Written once and then never changed by anything that Rowlock does.
APPEND_ONLY = ("tasks_intervention", "orders_entry")
INTERNAL = ("tasks.tasks.run_bulk_action", "tasks.tasks.run_registered_pattern", "dashboard.tasks.run_lab")
LINE = "INSERT INTO tasks_intervention ({}) VALUES ({})"


@pytest.fixture(scope="module")
def site(django_db_blocker) -> Iterator[RoleServer]:
    with role_server() as site, django_db_blocker.unblock():
        with site.acting(OWNER):
            a_row_of_everything()
        yield site


@pytest.fixture
def web(site, settings) -> Iterator[None]:
    settings.ROWLOCK_LAB = False  # it makes schemas, which no role may
    with site.acting(WEB):
        yield


def acting_as(role: str) -> Callable[..., Iterator[None]]:
    @pytest.fixture
    def act(site) -> Iterator[None]:
        with site.acting(role):
            yield

    return act


worker, monitor = acting_as(WORKER), acting_as(MONITOR)


@pytest.fixture(autouse=True)
def nothing_was_refused(site, request) -> Iterator[None]:
    """Pages and workers carry on after some errors; the server's log tells of each right that was missing."""
    before = len(site.refusals())
    yield
    if "refused" not in request.node.name:
        assert site.refusals()[before:] == []


def test_the_file_names_every_table_so_that_a_new_one_is_decided_on(site):
    assert {name for name in site.tables() if not re.search(rf"\b{name}\b", ROLES_SQL)} == set()


def test_migrations_run_as_their_role_and_own_what_they_make(site):
    owners = site.owner.rows("SELECT DISTINCT tableowner AS name FROM pg_tables WHERE schemaname = 'rowlock'")
    assert [row.name for row in owners] == [MIGRATE]


def test_web_serves_every_address(web):
    client = browser()
    pages = sorted((route, name) for route, name in walk() if name not in NOT_WALKED)
    answers = {
        f"{method} {route}": getattr(client, method)(address(route, name)).status_code
        for method in ("get", "post")
        for route, name in pages
    }
    assert {page: status for page, status in answers.items() if status >= 500} == {}
    assert answers["get admin/tasks/task/"] == 200
    assert client.get("/readyz").status_code == 200


def test_what_the_role_of_the_web_server_is_refused_is_said_in_words(site, web):
    site.owner.rows("INSERT INTO dashboard_demorow (kind, row_id) VALUES ('task', 1) ON CONFLICT DO NOTHING")
    answer = browser().post("/admin/ops/demo/remove/", {"reason": "seen it"})
    assert answer.status_code == 503
    assert "no right to do this" in answer.text


def test_web_does_what_operators_do(web):
    [payer, payee] = Account.objects.order_by("pk").values_list("pk", flat=True)
    said("requeue_tasks", 4711)
    said("edit_tasks", 4711, "--set-priority", 5)
    said("quarantine_tasks", 4711)
    said("cancel_tasks", 4711)
    said("pause_queue", "payouts")
    said("resume_queue", "payouts")
    said("configure_queue", "payouts", "--recovery", "ask")
    said("stop_worker", "4711")
    where = ("--queue", "default", "--ordering-key", "k", "--count", 3)
    said("enqueue_task", "dashboard.tasks.nap", "--args", "[0]", *where)
    lost = rows.processing("a worker that nobody knows")
    assert said("recover_tasks")["ids"] == [lost.pk]
    said("transfer", payer, payee, "10.00")
    assert Intervention.objects.filter(action="cancel").exists()


def test_web_keeps_people_orders_and_the_history_of_locks(site, web):
    client = browser()
    new = dict.fromkeys(("password1", "password2"), "long enough 4711")
    form = {"username": "clara", **new, "usable_password": "true"}
    assert client.post("/admin/auth/user/add/", form).status_code == 302
    clara = User.objects.get(username="clara")
    assert client.post(f"/admin/auth/user/{clara.pk}/delete/", {"post": "yes"}).status_code == 302
    order = {"customer_email": "b@example.test", "placed_at_0": "2026-01-01", "placed_at_1": "10:00:00"}
    assert client.post("/admin/orders/order/add/", order).status_code == 302
    assert [Client().post("/admin/login/", {"username": "anna", "password": "wrong"}).status_code] == [200]
    with closing(site.open(WORKER)) as holder, closing(site.open(WORKER)) as waiter:
        holder.execute("BEGIN; SELECT 1 FROM orders_order WHERE id = 4711 FOR UPDATE")
        waiter.execute("SET lock_timeout = '20s'")
        pid = holder.info.backend_pid
        waiter.pgconn.send_query(b"SELECT 1 FROM orders_order WHERE id = 4711 FOR UPDATE")
        wait_until(Sampler(connection).sample)
        [session] = [each for each in said("show_locks")["sessions"] if each["pid"] == pid]
        said("signal_backend", pid, "--started", session["started"], "--terminate", "--reason", "a test")
    assert LockWait.objects.filter(blocker_pid=pid).exists()


def test_a_worker_completes_fails_and_takes_back(site, ledger):
    database = site.owner
    [done] = database.enqueue(handlers.work)
    [keyed] = database.enqueue(handlers.work, ordering_key="one")
    [hanging] = database.enqueue(handlers.hang)
    [deadly] = database.enqueue(handlers.die, max_attempts=1)
    started = processes.start_worker(site.url(WORKER), ledger.url, "--burst")
    with processes.ended_at_last([started]):
        ends = {
            name: database.wait_for(task_id, "COMPLETED", "FAILED").status
            for name, task_id in {"done": done, "keyed": keyed, "hanging": hanging, "deadly": deadly}.items()
        }
        assert started.wait(60) == 0
    assert ends == {"done": "COMPLETED", "keyed": "COMPLETED", "hanging": "FAILED", "deadly": "FAILED"}
    assert database.outcomes(hanging) == ["timed_out"]
    assert database.outcomes(deadly) == ["abandoned"]


def test_a_worker_does_what_cron_asks_of_it(worker):
    [payer, payee] = Account.objects.order_by("pk").values_list("pk", flat=True)
    said("enqueue_task", "dashboard.tasks.nap", "--queue", "default", "--args", "[0]")
    said("recover_tasks")
    said("send_shipped_emails")
    said("transfer", payer, payee, "10.00", "--strategy", "optimistic")
    said("queue_status")
    said("archive_tasks", "--older-than", "7d", "--dry-run")
    said("archive_tasks", "--drop-before", "2000-01")
    said("prune_tasks", "--older-than", "7d")
    said("prune_history", "--older-than", "30d")
    with lock("nightly", ttl=30) as held:
        assert held.fence
    assert not Attempt.objects.filter(pk=4711).exists()
    assert not RefusedWrite.objects.filter(pk=4711).exists()


@pytest.mark.parametrize("role", [WEB, WORKER])
def test_web_and_worker_watch_for_alerts(site, settings, caplog, role):
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_URLS": ["https://hooks.example/x"]}
    before = len(site.refusals())
    with site.acting(role):
        assert Watcher(lambda seconds: True).serve()
    assert (caplog.messages, site.refusals()[before:]) == ([], [])
    assert site.owner.value("SELECT count(*) FROM tasks_lock WHERE name = 'rowlock-alerts' AND owner IS NULL") == 1


def test_monitor_scrapes_and_shows_and_reads_no_secret(site, settings, monitor):
    settings.METRICS_TOKEN, settings.SHARED_LOOK_SECONDS = "a token", 0
    answer = Client().get("/metrics", headers={"Authorization": "Bearer a token"})
    assert answer.status_code == 200
    assert "rowlock_queue_tasks{" in answer.text
    assert not re.search(r"rowlock_scrape_errors{.*} [1-9]", answer.text)
    now = timezone.now().isoformat()
    for command in (["show_locks"], ["show_attention"], ["show_lock_history", "--at", now], ["queue_status"]):
        assert run(*command, "--json").status in (0, 3), command
    assert Client().get("/readyz").status_code == 200


@pytest.mark.parametrize("role", APPLICATION)
def test_what_was_written_for_good_is_refused_to_every_role(site, role):
    statements = [
        *(f"UPDATE {table} SET id = id" for table in APPEND_ONLY),
        *(f"DELETE FROM {table}" for table in APPEND_ONLY),
        *(f"SELECT 1 FROM {table} FOR UPDATE" for table in APPEND_ONLY),
        "INSERT INTO tasks_intervention SELECT * FROM tasks_intervention ON CONFLICT (id) DO UPDATE SET actor = 'me'",
        "ALTER TABLE tasks_intervention DISABLE TRIGGER rowlock_append_only",
        "ALTER TABLE tasks_intervention DISABLE TRIGGER ALL",
        "DROP TRIGGER rowlock_append_only ON tasks_intervention",
        "CREATE RULE nothing AS ON INSERT TO tasks_intervention DO INSTEAD NOTHING",
        "ALTER FUNCTION rowlock_refuse_change() SET search_path = public",
        "DROP FUNCTION rowlock_refuse_change CASCADE",
        "SET session_replication_role = replica",
        "DROP SCHEMA rowlock CASCADE",
        *(f"{verb} {table}" for table in site.tables() for verb in ("TRUNCATE", "DROP TABLE")),
    ]
    assert site.not_refused(role, statements) == []


@pytest.mark.parametrize("role", APPLICATION)
def test_ways_out_of_the_role_are_refused(site, role):
    statements = [
        *(f"SET ROLE {other}" for other in (*ROLES, OWNER) if other != role),
        f"GRANT pg_read_server_files TO {role}",
        f"ALTER ROLE {role} SUPERUSER",
        "CREATE TABLE rowlock.mine (id int)",
        "CREATE TABLE public.mine (id int)",
        "CREATE SCHEMA lab_of_mine",
        "CREATE FUNCTION rowlock.now() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "COPY tasks_queue TO PROGRAM 'cat'",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT rolpassword FROM pg_authid",
        "INSERT INTO django_migrations (app, name, applied) VALUES ('tasks', '9999', now())",
        "UPDATE auth_permission SET codename = 'x'",
        "UPDATE django_content_type SET model = 'x'",
    ]
    assert site.not_refused(role, statements) == []


def test_people_and_what_tasks_carry_are_refused_to_those_who_need_it_not(site):
    people = ["auth_user", "auth_group", "django_session", "django_admin_log", "axes_accessattempt"]
    asked = [f"SELECT 1 FROM {table}" for table in people]
    assert site.not_refused(WORKER, asked) == []
    columns = {
        "tasks_task": ("args", "kwargs", "return_value", "*"),
        "tasks_archive": ("id",),
        "tasks_attempt": ("traceback",),
        "tasks_commandrun": ("argv", "output"),
        "tasks_intervention": ("reason",),
        "orders_order": ("customer_email", "email_reply"),
        "orders_account": ("balance", "owner"),
        "orders_entry": ("amount",),
    }
    asked += [f"SELECT {column} FROM {table}" for table, names in columns.items() for column in names]
    assert site.not_refused(MONITOR, asked) == []


def test_monitor_is_refused_every_write(site):
    assert site.writable(MONITOR) == []
    functions = ("rowlock_enqueue('a.b')", "rowlock_lock_acquire('a', 'b', interval '1 s')", "nextval('rowlock_fence')")
    statements = [*(f"DELETE FROM {table}" for table in site.tables()), *(f"SELECT {call}" for call in functions)]
    assert site.not_refused(MONITOR, statements) == []


@pytest.mark.parametrize("role", [WEB, MONITOR, ENQUEUE])
def test_what_fills_the_disk_without_a_table_is_refused(site, role):
    statements = [
        "CREATE TEMPORARY TABLE mine (id int)",
        "SELECT lo_create(0)",
        "SELECT lo_creat(-1)",
        "SELECT lo_from_bytea(0, 'x')",
        "SELECT lo_put(1, 0, 'x')",
        "SELECT pg_logical_emit_message(true, 'x', 'y')",
        "SELECT pg_logical_emit_message(false, 'x', 'y'::bytea)",
    ]
    assert site.not_refused(role, statements) == []


def test_enqueue_may_call_its_function_and_is_refused_all_else(site):
    path = handlers.work.module_path
    with closing(site.open(ENQUEUE)) as program:
        # In its own transaction, with a table before ours in the path, as far as it can have one.
        program.execute("SET search_path = pg_temp, rowlock")
        [made] = program.execute(
            "SELECT rowlock.rowlock_enqueue(%s, '[0.5]', ordering_key => 'k', ordered_by_commit => true)", [path]
        ).fetchone()
    assert (site.owner.task(made).task_path, site.owner.task(made).args) == (path, [0.5])
    assert site.writable(ENQUEUE) == []
    statements = [
        *(f"SELECT 1 FROM {table}" for table in site.tables()),
        *(f"DELETE FROM {table}" for table in site.tables()),
        "INSERT INTO tasks_task (task_path) VALUES ('a.b')",
        "SELECT rowlock_lock_acquire('a', 'b', interval '1 s')",
        "SELECT nextval('rowlock_fence')",
        "ALTER FUNCTION rowlock_enqueue SECURITY INVOKER",
        "SELECT rowlock_make_archive('2026-01-01')",
        "SELECT rowlock_drop_archive('2026-01-01')",
    ]
    assert site.not_refused(ENQUEUE, statements) == []


FUNCTION = """
SELECT prosecdef, proconfig, proowner::regrole::text AS owner, has_function_privilege(%s, oid, 'EXECUTE') AS is_open
FROM pg_proc WHERE proname = %s
"""


@pytest.mark.parametrize("name", ["rowlock_enqueue", "rowlock_make_archive", "rowlock_drop_archive"])
def test_a_function_of_its_owners_rights_keeps_its_path_whoever_calls_it(site, name):
    [function] = site.owner.rows(FUNCTION, MONITOR, name)
    assert (function.prosecdef, function.owner, function.is_open) == (True, MIGRATE, False)
    assert function.proconfig == ["search_path=rowlock, pg_temp"]


def test_what_pages_enqueue_under_rights_is_refused_to_those_who_only_enqueue(site):
    """Through the function, and to a role that may write the table, or has put on such a role."""
    site.owner.connection.execute("CREATE ROLE a_program LOGIN")
    site.owner.connection.execute("GRANT USAGE ON SCHEMA rowlock TO a_program")
    site.owner.connection.execute("GRANT INSERT, SELECT ON tasks_task TO a_program")
    site.owner.connection.execute("GRANT USAGE ON SEQUENCE tasks_task_id_seq TO a_program")
    site.owner.connection.execute("GRANT EXECUTE ON FUNCTION rowlock_enqueue TO a_program")
    insert = "INSERT INTO rowlock.tasks_task (task_path, args) VALUES ('{}', '[1]')"
    call = "SELECT rowlock.rowlock_enqueue('{}', '[1]')"
    asked = [statement.format(path) for statement in (insert, call) for path in INTERNAL]
    assert site.not_refused("a_program", asked) == []
    assert site.not_refused(ENQUEUE, asked) == []
    assert site.not_refused("a_program", [insert.format("a.b"), call.format("a.b")]) != []
    assert site.not_refused(WEB, asked) == asked
    with closing(site.open(OWNER)) as session:
        session.execute("SET ROLE a_program")
        for statement in asked:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="role a_program may not enqueue"):
                session.execute(statement)


@pytest.mark.parametrize("role", [WEB, WORKER])
def test_the_role_and_the_time_of_a_line_of_the_audit_are_refused_to_whoever_writes_it(site, role):
    columns = "actor, source, action, target"
    statements = [
        LINE.format(f"{columns}, {more}", f"'anna', 'command', 'cancel', 'task:1', {value}")
        for more, value in (("role", "'rowlock_web'"), ("at", "now() - interval '1 year'"), ("id", "1"))
    ]
    assert site.not_refused(role, statements) == []
    with closing(site.open(role)) as session, session.transaction(force_rollback=True):
        session.execute(LINE.format(columns, "'anna', 'command', 'cancel', 'task:1'"))
        [written] = session.execute("SELECT role FROM tasks_intervention ORDER BY id DESC LIMIT 1").fetchone()
    assert written == role


def test_a_line_of_a_page_is_refused_to_a_worker_but_for_the_bulk_run_in_hand(site):
    line = LINE.format("actor, source, action, target", "'anna', 'page', 'cancel', 'task:1'")
    run = "INSERT INTO tasks_bulkrun (action, upto, actor, filter{}) VALUES ('cancel', 1, 'anna', ''{})"
    site.owner.connection.execute("DELETE FROM tasks_bulkrun")
    site.owner.connection.execute(run.format("", ""))
    forged = [line, "UPDATE tasks_bulkrun SET actor = 'otto'", run.format("", "")]
    assert site.not_refused(WORKER, [*forged, f"CREATE TEMPORARY TABLE tasks_bulkrun ON COMMIT DROP AS SELECT "
        f"'anna' AS actor, now() AS started_at, NULL::timestamptz AS finished_at; {line}"]) == []  # fmt: skip
    site.owner.connection.execute(run.format(", started_at", ", now()"))
    assert site.not_refused(WORKER, forged) == [line]
    site.owner.connection.execute("UPDATE tasks_bulkrun SET finished_at = now()")
    assert site.not_refused(WORKER, forged) == []
    assert site.not_refused(WEB, [line]) == [line]
    site.owner.connection.execute("DELETE FROM tasks_bulkrun")


def test_a_worker_carries_out_a_bulk_run_in_the_name_of_whoever_asked(site, settings, web):
    rows.failed(queue_name="bulk")
    chosen = TaskFilter.from_query("queue=bulk&status=FAILED")
    run_id = bulk.request("requeue", chosen, 2**62, Settings(), Who("anna", "page"), "a token of this test")
    with site.acting(WORKER):
        assert bulk.carry_out(run_id)["done"] == 1
    entry = Intervention.objects.filter(action="requeue").latest("pk")
    assert (entry.actor, entry.source, entry.role) == ("anna", "page", WORKER)


def test_the_audit_names_the_role_where_it_is_not_that_of_the_pages(site, settings, web):
    settings.SHARED_LOOK_SECONDS = 0
    with site.acting(WORKER):
        said("recover_tasks")
        said("enqueue_task", "dashboard.tasks.nap", "--args", "[0]", "--queue", "default", "--reason", "by cron")
    said("enqueue_task", "dashboard.tasks.nap", "--args", "[0]", "--queue", "default", "--reason", "by hand")
    page = browser().get("/admin/ops/audit/?action=enqueue").text
    assert page.count("as rowlock_worker") == Intervention.objects.filter(action="enqueue", role=WORKER).count() > 0
    assert "as rowlock_web" not in page


@pytest.mark.parametrize("role", [WORKER, MONITOR, ENQUEUE])
def test_ending_sessions_of_others_is_refused_to_all_but_the_pages(site, role):
    with closing(site.open(WEB)) as other:
        calls = [f"SELECT {name}({other.info.backend_pid})" for name in ("pg_terminate_backend", "pg_cancel_backend")]
        assert site.not_refused(role, calls) == []
        assert other.execute("SELECT 1").fetchone() == (1,)
