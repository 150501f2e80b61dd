"""For adopters' tests: read enqueued tasks, and run them in the test's own process and transaction.

    def test_signing_up_sends_one_mail(self):
        sign_up("anna@example.test")
        [enqueued] = testing.enqueued(send_mail)
        self.assertEqual(enqueued.args, ["anna@example.test"])
        testing.run_due()
        self.assertEqual(len(mail.outbox), 1)

Claims, attempts, retries, signals and stored errors work as in a worker, inside Django's TestCase too. There, as always
in a TestCase, `transaction.on_commit` waits for a commit that never comes (`captureOnCommitCallbacks`).
"""

from collections.abc import Callable
from functools import partial

from django.db import connection, transaction
from psycopg.pq import TransactionStatus

from tasks.compat import Task, TaskResult
from tasks.framework import declaration, payload
from tasks.models import Task as TaskRow
from tasks.queue import completion, strategies
from tasks.queue.claim import Claim, Claimer
from tasks.queue.reports import Reports, checkpoint
from tasks.worker.run import Runner, Work

WORKER_ID = "tests"
ENDLESS = 1000

BRING_FORWARD = """
UPDATE tasks_task SET run_after = statement_timestamp()
WHERE id = (SELECT id FROM tasks_task WHERE status = 'READY' AND run_after > statement_timestamp()
            ORDER BY run_after, id LIMIT 1)
"""


def enqueued(task: Task | None = None) -> list[TaskRow]:
    """Waiting tasks in the order in which they were enqueued: all of them, or those of one task function.

    Encrypted arguments are decrypted. Raises PayloadLocked without their key.
    """
    rows = TaskRow.objects.ready().order_by("id")
    found = list(rows if task is None else rows.filter(task_path=task.module_path))
    for row in found:
        row.args, row.kwargs = payload.opened_call(row.args, row.kwargs)
    return found


def run_due(limit: int | None = None) -> list[TaskResult]:
    """Run due tasks and those that they enqueue, in a worker's order; returns the results in the order of the ends.

    A failure is recorded as by a worker, and its retry is due later. Without `limit`, more than 1000 tasks raise
    RuntimeError. Raises UnknownTask for a function that is not registered.
    """
    return _run(_claim, limit)


def run_all(limit: int | None = None) -> list[TaskResult]:
    """Run everything as if time passed: due tasks, then scheduled ones, with retries until no attempt is left."""
    return _run(_claim_next, limit)


def _run(claim: Callable[[], list[Claim]], limit: int | None) -> list[TaskResult]:
    results: list[TaskResult] = []
    while (limit is None or len(results) < limit) and (claimed := claim()):
        if len(results) == ENDLESS and limit is None:
            raise RuntimeError(f"{ENDLESS} tasks ran and more are due: does one enqueue itself? Pass a limit.")
        task = declaration.get(claimed[0].task_path)
        told = Reports(WORKER_ID)
        runner = _Runner(WORKER_ID, told, partial(checkpoint, connection))
        ending = runner.run(claimed[0], task)
        told.write(connection)
        completion.flush(connection, WORKER_ID, [ending])
        results.append(task.get_backend().get_result(str(claimed[0].id)))
    return results


def _claim() -> list[Claim]:
    return strategies.claim(connection, Claimer(WORKER_ID), 1)


def _claim_next() -> list[Claim]:
    while not (claimed := _claim()):
        with connection.cursor() as cursor:
            cursor.execute(BRING_FORWARD)
            if not cursor.rowcount:
                break
    return claimed


class _Runner(Runner):
    """Runs handlers in the test's own transaction, and closes no connection."""

    def call(self, claim: Claim, work: Work) -> str | None:
        """Keep a failed handler's writes, as in a worker, unless the transaction is broken."""
        savepoint = connection.savepoint()
        if savepoint is None:  # the test has no transaction
            return super().call(claim, work)
        try:
            return work()
        finally:
            status = connection.connection.info.transaction_status
            if connection.needs_rollback or status == TransactionStatus.INERROR:
                transaction.set_rollback(False)
                connection.savepoint_rollback(savepoint)
            connection.savepoint_commit(savepoint)

    def relaxes(self, task: declaration.PostgresTask) -> bool:
        """The session is the test's."""
        return False

    def clean_up(self) -> None:
        """The connections are in the middle of the test's transaction."""
