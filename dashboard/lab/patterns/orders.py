"""Patterns over rows of orders (patterns, systems A and B): double-checked, batched, idempotent, and under named locks.

`hold` is the lock that one writes first: set if absent, poll, delete at the end. It has no expiry and no owner. It is a
row instead of the article's cache key: the semantics of `cache.add` are the same, and its faults do not depend on the
server that keeps it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

from django.db import connection
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from dashboard.lab.patterns.pattern import TOUCHES, Pattern, Rows
from dashboard.lab.worker import Ledger, Worker
from orders.models import Order
from orders.shipping import Run, ship
from tasks import conf
from tasks.exceptions import LockHeld
from tasks.locking import lock, locked_batches, update_each
from tasks.locking.double_checked import DoubleChecked, OnLocked
from tasks.locking.named.backends import CACHE, LEASE, REDIS, problem_of

FILL_ORDERS = """
INSERT INTO orders_order (customer_email, placed_at, shipped_at)
SELECT 'c' || n || '@example.test', '2026-01-01', '2026-01-02' FROM generate_series(1, %(items)s) AS n
"""
TOUCH_ORDER = """
UPDATE orders_order SET placed_at = placed_at + interval '1 second'
WHERE id = (SELECT id FROM orders_order ORDER BY random() LIMIT 1 FOR NO KEY UPDATE) RETURNING id
"""
ORDERS_DONE = "SELECT id FROM orders_order WHERE shipped_email_sent"
SECONDS_KEPT = (
    "SELECT coalesce(sum(extract(epoch FROM placed_at - '2026-01-01'::timestamptz)), 0)::int FROM orders_order"
)
ORDERS = Rows(
    name="orders",
    source="L. Plant, double-checked locking over rows in Django",
    fill=FILL_ORDERS,
    touch=TOUCH_ORDER,
    done=ORDERS_DONE,
    acknowledged=TOUCHES,
    kept=SECONDS_KEPT,
    following=lambda: Order.objects.to_mail().order_by("pk"),
)
LOCKED_ORDERS = replace(ORDERS, source="an article on a distributed lock in a cache, and PostgreSQL's advisory locks")

CREATE_CACHE = "CREATE TABLE lab_cache (key text PRIMARY KEY)"
ADD = "INSERT INTO lab_cache (key) VALUES (%s) ON CONFLICT DO NOTHING"
DELETE = "DELETE FROM lab_cache WHERE key = %s"
POLL_SECONDS = 0.1
LOCK_SECONDS = 30
BATCH = 50
SENT: dict[str, object] = {"shipped_email_sent": True, "email_state": Order.EmailState.SENT}
PASSED_BY = 50  # lost races between two notes of progress


@contextmanager
def hold(name: str, ledger: Ledger) -> Iterator[None]:
    """Wait for the lock, however long; delete it in `finally`, even if somebody else holds it by then."""
    with ledger.waiting():
        while not _run(ADD, name):
            time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        _run(DELETE, name)


def _run(statement: str, name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(statement, [name])
        return bool(cursor.rowcount)


def double_checked(worker: Worker) -> None:
    _ship(worker, "skip")


def double_checked_nowait(worker: Worker) -> None:
    _ship(worker, "report")


def _ship(worker: Worker, on_locked: OnLocked) -> None:
    ship("send_first", on_locked=on_locked, until_empty=True, progress=worker.note_races)


def unsafe(worker: Worker) -> None:
    """The same criteria and e-mail, but without the lock and the second check, and with `save()`."""
    with Run() as run:
        for order in _orders():
            run.mailer.send(order)
            order.shipped_email_sent, order.email_state = True, Order.EmailState.SENT
            order.save()


def double_checked_batched(worker: Worker) -> None:
    with Run() as run:

        def send_all(orders: list[Order]) -> None:
            for order in orders:
                run.mailer.send(order)
            Order.objects.filter(pk__in=[order.pk for order in orders]).update(**SENT)

        while Order.objects.to_mail().exists():
            locked_batches(Order.objects.to_mail(), send_all, size=BATCH)


def idempotent_update(worker: Worker) -> None:
    with Run() as run:

        def sent(order: Order) -> dict[str, object]:
            run.mailer.send(order)
            return SENT

        update_each(Order.objects.to_mail(), sent)


def cache_lock(worker: Worker) -> None:
    backend = REDIS if conf.get("REDIS_URL") else LEASE
    _under_locks(worker, lambda name: lock(name, ttl=LOCK_SECONDS, backend=backend))


def cache_lock_runs_on() -> str:
    if conf.get("REDIS_URL"):
        return gettext("Redis (REDIS_URL), which all processes on all machines share.")
    return _table_instead_of_cache(
        gettext("A table of leases in PostgreSQL, which all processes share; REDIS_URL is not set.")
    )


def naive_runs_on() -> str:
    return _table_instead_of_cache(
        gettext(
            "A table of the run's own in the place of a cache: all processes share it, so what breaks here is the form "
            "of the lock, and breaks in any cache."
        )
    )


def _table_instead_of_cache(table: str) -> str:
    """The table, and the problem with the cache configured here."""
    return f"{table} {problem_of(f'{CACHE}default') or ''}".strip()


def advisory_lock(worker: Worker) -> None:
    _under_locks(worker, lambda name: lock(name, ttl=LOCK_SECONDS, backend="advisory"))


def cache_lock_naive(worker: Worker) -> None:
    _under_locks(worker, lambda name: hold(name, worker.ledger))


def _under_locks(worker: Worker, locked: Callable[[str], AbstractContextManager[object]]) -> None:
    """Handle each order under a lock with its name; check it again once the lock is held."""
    with Run() as run:
        for order in _orders():
            try:
                with locked(f"order-{order.pk}"):
                    again = Order.objects.to_mail().filter(pk=order.pk).first()
                    if again is None:
                        _lose(worker)
                    else:
                        run.send_then_mark(again)
            except LockHeld:
                _lose(worker)


def _lose(worker: Worker) -> None:
    """Count a lost race, and note it now and then: a worker that always comes too late is not stalled."""
    worker.ledger.lost_races += 1
    if worker.ledger.lost_races % PASSED_BY == 0:
        worker.ledger.note("passed")


def _orders() -> Iterator[Order]:
    """The orders to mail, again and again until there are none."""
    while orders := list(Order.objects.to_mail().order_by("pk")):
        yield from orders


orders_pattern = partial(Pattern, rows=ORDERS)
locks_pattern = partial(Pattern, rows=LOCKED_ORDERS)
PATTERNS = (
    orders_pattern(
        unsafe,
        is_safe=False,
        promise=_("None."),
        weakness=_("Two processes see the same order and both mail it; save() writes stale columns back over others'."),
        use=_("Never with more than one process. It is here to show what the others prevent."),
    ),
    orders_pattern(
        double_checked,
        code=(_ship, ship, Run.send_then_mark, DoubleChecked),
        stands_for="shipped_emails",
        promise=_("One process at a time handles each order; orders that others hold are skipped."),
        weakness=_("One transaction for each row; a crash between the e-mail and the commit sends it again."),
        use=_("Work outside the database that a column asks for, on rows that other code needs too."),
    ),
    orders_pattern(
        double_checked_nowait,
        code=(_ship, ship, Run.send_then_mark, DoubleChecked),
        promise=_("As double_checked; PostgreSQL says which rows were locked, so that they can be reported."),
        weakness=_("Each locked row costs an error and its rollback."),
        use=_("Reports of who holds the rows that were not handled."),
    ),
    orders_pattern(
        double_checked_batched,
        code=(locked_batches,),
        repeats=BATCH,
        promise=_("One process at a time handles each order, with one read and one write for many."),
        weakness=_("All rows of a batch stay locked until the last is done; a crash repeats the whole batch."),
        use=_("Quick work inside the database."),
    ),
    orders_pattern(
        idempotent_update,
        code=(update_each,),
        is_safe=False,
        promise=_("Only the columns named are written, and only where the criteria still hold."),
        weakness=_("Two processes may both do a row's work, so it must be harmless when repeated."),
        use=_("Work that is idempotent: then no lock is needed at all."),
    ),
    locks_pattern(
        cache_lock,
        code=(_under_locks, lock),
        runs_on=cache_lock_runs_on,
        promise=_("One process at a time under each name, across machines; it is free again when its holder is dead."),
        weakness=_("Several statements per row; with Redis, two servers that must agree."),
        use=_("Protecting something that is not a row, such as a cron run."),
    ),
    locks_pattern(
        cache_lock_naive,
        needs=CREATE_CACHE,
        code=(_under_locks, hold),
        runs_on=naive_runs_on,
        is_safe=False,
        promise=_("One process at a time, as long as nobody dies and nobody is slow."),
        weakness=_("No expiry and no owner: a dead holder blocks for ever, and anybody's release frees the lock."),
        use=_("Never. It is here because it is the usual first attempt."),
    ),
    locks_pattern(
        advisory_lock,
        code=(_under_locks, lock),
        promise=_("One process at a time under each name; PostgreSQL frees it with the session."),
        weakness=_("It needs a session of its own, which a transaction-pooling proxy does not give."),
        use=_("Names that are not rows, when everybody uses one database."),
    ),
)
