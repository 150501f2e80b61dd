"""The guards of what other projects use, that mutation proof removes: imports, payloads, tests, Celery's decorator."""

from tests.mutants import Mutant, without

IMPORTED, RESUMED = "tests/tasks/importing/test_sources.py", "tests/tasks/importing/test_resumption.py"
PLUGIN = "tests/tasks/test_pytest_plugin.py"
COROUTINES = "tests/tasks/locking/test_lock_coroutines.py"
PAYLOADS = "tests/tasks/framework/test_payload.py"
ENCRYPTED = "tests/dashboard/test_encrypted_payloads.py"

PROJECTS = [
    Mutant("retry_for: others fail at once", "tasks.worker.failures.describe",
           "task.retry_for is None or isinstance(error, task.retry_for)", "True", ("tests/tasks/test_celery.py",)),
    without("lock of a coroutine: got at its cancel", "tasks.locking.named.lock.Lock.__aenter__",
            "            if taken.is_set():\n                await _in_thread(self.release)\n",
            COROUTINES, "-k", "same_moment and lease"),
    Mutant("lock of a coroutine: not its thread's", "tasks.locking.named.lock._fences_here",
           "if coroutine is not None:", "if False:", (COROUTINES, "-k", "another_coroutine and lease")),
    Mutant("tests: a row that Django empties is not left behind", "tasks.testing.leftovers.Watch._confirmed",
           " if rows_stay or not found.is_row", "", (PLUGIN,)),
    Mutant("tests: moved schedules keep to the calendar", "tasks.testing.clock._tick",
           '_ahead.pop((name, row["next_at"]), 0.0)', "0.0", ("tests/tasks/framework/test_testing_clock.py",)),
    Mutant("import: a mark is for ever", "tasks.operations.importing.Import._import", "if mark in marked:", "if False:",
           (IMPORTED, "-k", "second_import")),
    without("import: two take turns", "tasks.operations.importing.Import._import",
            '        fetch(connection, TAKE_TURNS, {"source": self.source})\n', RESUMED, "-k", "turns"),
    Mutant("import: rows and marks are one transaction", "tasks.operations.importing.Import.perform",
           "with transaction(connection, rollback=self.dry_run):", "if connection:", (RESUMED, "-k", "killed")),
    without("payload: handlers' texts", "tasks.framework.redacted_calls.redactor",
            "    if payload.seals(task):\n        finder.hide([args, kwargs])\n", PAYLOADS),
    Mutant("payload: the oldest key hashes", "tasks.framework.arguments.key_of_arguments", "keys[-1]", "keys[0]",
           (PAYLOADS,)),
    without("payload: tasks without their key go back", "tasks.worker.process.WorkerProcess.run_batch",
            " or claim.is_locked()", ENCRYPTED, "-k", "one"),
    without("payload: no e-mail tells what was typed", "dashboard.schedules.editor.edit",
            "@sensitive_post_parameters()\n", ENCRYPTED, "-k", "mailed"),
]  # fmt: skip
