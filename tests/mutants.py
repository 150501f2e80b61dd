"""The guards that mutation proof takes out, one at a time: where each stands, what is left without it, who must notice.

A text of the code stands here word for word, so a guard that moves fails tests/test_faults.py until it is found again.
"""

from dataclasses import dataclass

CLAIMS, FLUSH, RECOVERY = "tasks/claims.py", "tasks/flush.py", "tasks/recovery.py"
PRESENCE, TRANSITIONS = "tasks/presence.py", "tasks/transitions.py"
SHORTCUT, SHORTCUTS = "tasks/shortcut.py", "tests/tasks/test_shortcut.py"
PLAIN, PLAIN_LINES = "tasks/plain_line.py", "tests/tasks/test_plain_line.py"
CLAIMED_ALONE = "tests/tasks/test_claims_alone.py"
NARROW_LINES = "tests/tasks/test_narrow_line.py"
KEEPER, PAGE, BURYING = "tasks/worker/keeper.py", "tasks/worker/page.py", "tests/tasks/worker/test_burying.py"
CHILD, AHEAD = "tasks/worker/child.py", "tests/tasks/worker/test_ahead.py"
COMPANION, DUTY = "tasks/worker/companion.py", "tests/tasks/worker/test_duty.py"
SUPERVISOR, LOOKOUTS = "tasks/worker/supervisor.py", "tests/tasks/worker/test_lookout.py"
SILENCE = "tests/tasks/worker/test_silence.py"
LOCK_SQL, OBJECTS = "tasks/migrations/0007_lock_functions.py", "tasks/migrations/0002_database_objects.py"
DOUBLE_CHECKED, BACKENDS = "tasks/locking/double_checked.py", "dashboard/locks/backends.py"
FENCE = "tests/tasks/test_transitions_fence.py"
FENCED = "AND task.version = ending.version AND task.claimed_by = %(worker_id)s::text\n    RETURNING task.id, "
COMPLETED, FAILED = "task.queue_name,\n", "task.queue_name, task.attempt"
MATRIX = "tests/dashboard/test_security_matrix.py"
PAGE_LIMITS, DATABASES = "tests/dashboard/test_page_limits.py", "dashboard/databases.py"
INPUT = "tests/dashboard/test_hostile_input.py"
SQL_LOCKS = "tests/tasks/locking/test_lock_sql.py"
LOCKED_CLAIMS, LOCKED_SWEEPS = "tests/tasks/test_claims_locked.py", "tests/tasks/test_recovery_locked.py"


@dataclass(frozen=True)
class Mutant:
    """`old` (once in `path`) becomes `new`; one of `tests`, arguments of pytest, must fail then."""

    guard: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def without(guard: str, path: str, text: str, *tests: str) -> Mutant:
    """The guard is simply not there."""
    return Mutant(guard, path, text, "", tests)


def fenced(kind: str, rest: str, check: str) -> Mutant:
    """An ending that does not ask for the version, or for the owner."""
    old = FENCED + rest
    return Mutant(f"{kind}: {check}", FLUSH, old, old.replace(*CHECKS[check], 1), (FENCE,))


CHECKS = {
    "version": ("AND task.version = ending.version ", ""),
    "owner": ("AND task.claimed_by = %(worker_id)s::text", ""),
}
# Each module of pages whose rights are asked for by `require`.
GUARDED_PAGES = (
    *(f"dashboard/views/{name}.py" for name in (
        "audit", "burst", "demo", "lab", "lock_history", "locks", "overview", "schedule", "stale", "workers")),
    *(f"tasks/admin/{name}.py" for name in (
        "bulk_views", "enqueue_views", "pattern_admin", "queue_admin", "task_admin", "why_views")),
    "orders/account_admin.py",
    "orders/order_admin.py",
)  # fmt: skip

MUTANTS = [
    fenced("completion", COMPLETED, "version"),
    fenced("completion", COMPLETED, "owner"),
    fenced("failure", FAILED, "version"),
    fenced("failure", FAILED, "owner"),
    Mutant("ending on the version of now: attempt", FLUSH, " AND missed.attempt = task.attempt", "", (FENCE,)),
    without("ending on the version of now: row lock", FLUSH, " FOR NO KEY UPDATE OF task\n", FENCE),
    Mutant("flush: SKIP LOCKED", FLUSH, "ORDER BY id FOR NO KEY UPDATE SKIP LOCKED", "ORDER BY id FOR NO KEY UPDATE",
           ("tests/tasks/test_transitions_locked.py",)),
    Mutant("claim: no more than asked", CLAIMS, "    ) AS due LIMIT %(limit)s::int\n", "    ) AS due\n",
           ("tests/tasks/test_claims.py", LOCKED_CLAIMS, "-k", "f03 or f04")),
    Mutant("claim: rows are locked one by one", CLAIMS, ") AS due LIMIT", ") AS due ORDER BY due.id LIMIT",
           (LOCKED_CLAIMS, "-k", "f04")),
    Mutant("claim: SKIP LOCKED", CLAIMS, "FOR NO KEY UPDATE SKIP LOCKED) AS unkeyed", "FOR NO KEY UPDATE) AS unkeyed",
           (LOCKED_CLAIMS,)),
    Mutant("claim of a key's head: SKIP LOCKED", CLAIMS, "FOR NO KEY UPDATE SKIP LOCKED) AS head_row",
           "FOR NO KEY UPDATE) AS head_row", (LOCKED_CLAIMS,)),
    without("plain line: no keys", PLAIN,
            "      AND NOT EXISTS (\n"
            "          SELECT FROM tasks_task WHERE ordering_key IS NOT NULL AND status IN ('READY', 'PROCESSING'))\n",
            PLAIN_LINES),
    without("plain line: one priority", PLAIN, " AND first.priority IS NOT DISTINCT FROM last.priority", PLAIN_LINES),
    Mutant("plain line: one queue", PLAIN, "first.queue_name IS NOT DISTINCT FROM last.queue_name", "true",
           (PLAIN_LINES,)),
    without("plain line: queues that are served", PLAIN,
            "(%(queues)s::text[] IS NULL OR plain.queue_name = ANY(%(queues)s::text[]))\n      AND ", PLAIN_LINES),
    without("plain line: paused queues", PLAIN,
            "\n      AND NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = plain.queue_name "
            "AND tasks_queue.paused)", PLAIN_LINES),
    without("plain line: what is due", PLAIN, "          AND task.run_after <= statement_timestamp()\n",
            PLAIN_LINES),
    without("plain line: SKIP LOCKED", PLAIN, " SKIP LOCKED", LOCKED_CLAIMS),
    Mutant("narrow line: nothing else is due", CLAIMS, "count(*) = 1 FROM mark", "true", (NARROW_LINES,)),
    Mutant("narrow line: for a moment", CLAIMS, "of_narrow_line(taken[0], claimer.keys_rest_until)",
           "of_narrow_line(taken[0], float('inf'))", (NARROW_LINES,)),
    without("narrow line: what is scheduled is not due", "tasks/line.py",
            "    WHERE run_after <= statement_timestamp()\n", NARROW_LINES),
    without("shortcut past dead rows: paused queues", SHORTCUT,
            "    WHERE NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = place.queue_name "
            "AND tasks_queue.paused)\n", SHORTCUTS),
    Mutant("shortcut past dead rows: what others took since an empty walk", SHORTCUT,
           "greatest(place.run_after, statement_timestamp() - make_interval(secs => %(age)s::float8)) AS run_after",
           "place.run_after", (SHORTCUTS,)),
    Mutant("shortcut past dead rows: one claim after an empty walk", SHORTCUT,
           "        if self.empty_at is not None:\n            return None\n", "", (SHORTCUTS,)),
    Mutant("claimed alone: the last attempt", CLAIMS, "attempt + 1 >= max_attempts OR ", "", (CLAIMED_ALONE,)),
    Mutant("claimed alone: a durable task", CLAIMS, " OR task_path = ANY(%(durable)s::text[])", "", (CLAIMED_ALONE,)),
    Mutant("claimed alone: not ahead of the one in hand", CLAIMS, " AND %(may_be_alone)s::boolean", "",
           (CLAIMED_ALONE,)),
    Mutant("optimistic claim: what is locked is passed over", CLAIMS,
           "tried = rest[:1] if claimer.is_careful else rest", "tried = rest[:1]", (LOCKED_CLAIMS,)),
    Mutant("claim: around a row that is refused", CLAIMS,
           "claimer.careful_until = time.monotonic() + CAREFUL_SECONDS", "pass",
           ("tests/tasks/test_claims.py", "-k", "refused")),
    without("shortcut past dead rows: SKIP LOCKED", SHORTCUT, " FOR NO KEY UPDATE SKIP LOCKED", SHORTCUTS),
    Mutant("shortcut past dead rows: only of a large index", SHORTCUT,
           'not places or fetch(connection, SIZE)[0]["size"] < LARGE_BYTES', "not places", (SHORTCUTS,)),
    Mutant("shortcut past dead rows: many tasks are reason enough", CLAIMS, " or len(taken) >= MANY", "", (SHORTCUTS,)),
    Mutant("shortcut past dead rows: one slow claim is chance", CLAIMS, "(was_slow and claimer.is_slow)",
           "claimer.is_slow", (SHORTCUTS,)),
    Mutant("burial: what has not begun", KEEPER, "if begun is None:", "if True:", (BURYING,)),
    Mutant("burial: what ended earlier has begun", PAGE, "            self._remember(earlier)\n", "", (BURYING,)),
    Mutant("burial: once more when the session has ended", KEEPER,
           "            self._look_after_the_dead(connection)\n", "", (BURYING,)),
    Mutant("burial: what is taken back has begun", KEEPER, "[child.id], begun,", "[child.id],", (BURYING,)),
    Mutant("claimed ahead: given back while a task lasts", KEEPER,
           "            self._take_back_ahead(connection, children)\n", "", (AHEAD, "-k", "given_back")),
    Mutant("claimed ahead: void with the batch before it", PAGE,
           "return self.words[VOID_SERIAL] != self.words[SERIAL]\n", "return True\n",
           (AHEAD, "-k", "given_back or void")),
    Mutant("claimed ahead: over before the next claim", PAGE,
           "            self.words[AHEAD] = NONE\n            return self", "            return self",
           (AHEAD, "-k", "by_itself")),
    Mutant("claimed ahead: no lost answer", CHILD, " | self.ahead.ids()", "", (AHEAD, "-k", "answer_was_lost")),
    Mutant("claimed ahead: given back by who leaves", CHILD,
           "                self.session.run(self.ahead.end)\n", "", (AHEAD, "-k", "leaves")),
    Mutant("claimed ahead: the line is walked anew after it was given back", "tasks/worker/ahead.py",
           "        self.claimer.forget_places()", "        pass", (AHEAD, "-k", "task_lasts_it_is_given_back")),
    Mutant("late writes of a convicted worker without a session", "tasks/worker/child.py",
           "                self.outbox.write_late()\n", "", ("tests/tasks/worker/test_freezing.py", "-k", "f01")),
    without("duty: left in the middle of long work", COMPANION, "        self.pass_on_after_long_work()\n", DUTY),
    Mutant("duty: kept by who has nothing to do", COMPANION,
           "with self.session.lock:\n            self._busy_since = None\n", "pass\n", (DUTY,)),
    without("lookout: another for one that died", SUPERVISOR, "        self.lookout.pass_on(child.page)\n", LOOKOUTS),
    without("lookout: another for a frozen one", SUPERVISOR, "            self.lookout.pass_on(page)\n", LOOKOUTS),
    Mutant("VACUUM: the index of the claim", "tasks/migrations/0014_always_clean_indexes.py",
           "SET (vacuum_index_cleanup = on)", "SET (vacuum_index_cleanup = auto)", ("tests/tasks/test_vacuum.py",)),
    without("keys that rest: not where nothing else is due", CLAIMS,
            "        claimer.keys_rest_until = 0.0  # nothing else is due\n", "tests/tasks/test_claims_rest.py"),
    without("handlers: a connection that one of them opens is looked at", "tasks/worker/connections.py",
            '    connection_created.connect(_note, dispatch_uid="rowlock:worker")\n',
            "tests/tasks/worker/test_handlers.py", "-k", "returns_inside_a_transaction"),
    Mutant("handlers: no transaction is left open", "tasks/worker/connections.py",
           "        elif is_in_transaction(connection):", "        elif False:",
           ("tests/tasks/worker/test_handlers.py", "-k", "returns_inside_a_transaction")),
    Mutant("presence: a former session is ended", "tasks/worker/session.py", "presence.take_again(", "presence.take(",
           ("tests/tasks/worker/test_lost_answers.py", "-k", "former")),
    Mutant("a stall: a sweep is put off", KEEPER, "            self.lost_at = began\n", "",
           (BURYING, "-k", "held_up")),
    without("a stall: once for each sweep", KEEPER, " and not self.is_sweep_put_off", BURYING),
    Mutant("an outage: nobody is judged at once", KEEPER, "hurry()\n            self._wait_for_the_others()", "hurry()",
           (BURYING,)),
    Mutant("a silent server is given up", "tasks/database.py", "gen, interval, self.answer_seconds)",
           "gen, interval, 20.0)", (SILENCE,)),
    Mutant("a transaction that stands still ends", "tasks/database.py",
           'f"-c idle_in_transaction_session_timeout={milliseconds:.0f}"', '""', (SILENCE,)),
    without("a worker refuses older tables", "tasks/management/commands/run_worker.py",
            "        refuse_older_tables()\n", "tests/tasks/worker/test_upgrade.py"),
    Mutant("a claim that lost a race spares its transaction", "tasks/database.py",
           "return nullcontext() if is_alone else transaction(connection)", "return nullcontext()",
           ("tests/tasks/test_claims_keys.py",)),
    Mutant("optimistic claim: version", CLAIMS, "AND task.version = seen.version AND task.status", "AND task.status",
           ("tests/tasks/test_claims.py", "-k", "f07")),
    Mutant("optimistic claim: SKIP LOCKED", CLAIMS, "FOR NO KEY UPDATE SKIP LOCKED) AS task",
           "FOR NO KEY UPDATE) AS task",
           (LOCKED_CLAIMS,)),
    Mutant("one of a key at once: unique index", "tasks/migrations/0001_initial.py", 'fields=("ordering_key",),',
           'fields=("ordering_key", "id"),', ("tests/tasks/test_claims_keys.py", "-k", "f07")),
    without("version trigger", OBJECTS, '        VersionTrigger("tasks.Task"),\n',
            "tests/tasks/test_models_version.py"),
    Mutant("version trigger: <= and not =", "tasks/locking/version_trigger.py", "NEW.version <= OLD.version",
           "NEW.version = OLD.version", ("tests/tasks/test_models_version.py",)),
    Mutant("presence: the lock itself", PRESENCE, "pg_try_advisory_lock(hashtext('rowlock:presence:'",
           "true OR pg_try_advisory_lock(hashtext('rowlock:presence:'", ("tests/tasks/test_presence.py",)),
    Mutant("presence: only in its epoch", PRESENCE, "self.presence_epoch == self.epoch and not self.held",
           "not self.held", ("tests/tasks/test_recovery.py",)),
    Mutant("presence: second look", PRESENCE, ">= SECOND_LOOK_SECONDS else", ">= 0 else",
           ("tests/tasks/test_recovery.py",)),
    Mutant("presence: a convicted worker stays away", PRESENCE,
           "heartbeat_at = clock_timestamp()\nWHERE id = %(id)s::text AND stopped_at IS NULL",
           "heartbeat_at = clock_timestamp()\nWHERE id = %(id)s::text", ("tests/tasks/test_presence.py",)),
    without("conviction: no heartbeat since the look", RECOVERY, " AND worker.heartbeat_at = seen.heartbeat_at",
            "tests/tasks/test_recovery.py"),
    without("conviction: not back since the look", RECOVERY,
            "      AND worker.missing_since IS NOT DISTINCT FROM seen.missing_since\n", "tests/tasks/test_recovery.py"),
    Mutant("conviction: SKIP LOCKED", RECOVERY, "UPDATE OF worker SKIP LOCKED", "UPDATE OF worker", (LOCKED_SWEEPS,)),
    Mutant("taking back: SKIP LOCKED", RECOVERY, "UPDATE OF task SKIP LOCKED\n), attempt", "UPDATE OF task\n), attempt",
           (LOCKED_SWEEPS,)),
    without("taking back: queues that ask", RECOVERY,
            "      AND (%(include_ask)s::boolean OR NOT EXISTS (\n"
            "            SELECT FROM tasks_queue AS queue WHERE queue.name = task.queue_name "
            "AND queue.recovery = 'ask'))\n",
            "tests/tasks/test_recovery_tasks.py"),
    Mutant("one sweeper at a time", RECOVERY,
           "SELECT pg_try_advisory_xact_lock(hashtext('rowlock:sweep'), hashtext(current_schema())) AS elected",
           "SELECT true AS elected", (LOCKED_SWEEPS,)),
    Mutant("giving back: owner", TRANSITIONS, "unstarted.claimed_at AND task.claimed_by = %(worker_id)s::text",
           "unstarted.claimed_at", ("tests/tasks/test_transitions.py",)),
    without("giving back: time of the claim", TRANSITIONS, " AND task.started_at = unstarted.claimed_at",
            "tests/tasks/test_transitions.py"),
    Mutant("giving back what is unknown: owner", TRANSITIONS,
           "AND task.claimed_by = %(worker_id)s::text AND task.id <> ALL", "AND task.id <> ALL",
           ("tests/tasks/test_transitions.py",)),
    without("release of a lock: owner", LOCK_SQL, " AND lock.owner = rowlock_lock_release.owner", SQL_LOCKS),
    without("release of a lock: fence", LOCK_SQL, "lock.fence = rowlock_lock_release.fence AND ", SQL_LOCKS),
    without("renewal of a lock: owner", LOCK_SQL, " AND lock.owner = rowlock_lock_renew.owner", SQL_LOCKS),
    without("renewal of a lock: fence", LOCK_SQL, "lock.fence = rowlock_lock_renew.fence AND ", SQL_LOCKS),
    without("taking a lock: as it was seen", "tasks/migrations/0018_readable_names.py",
            " AND lock.fence = coalesce(seen.fence, 0)\n          AND lock.owner IS NOT DISTINCT FROM seen.owner "
            "AND lock.expires_at IS NOT DISTINCT FROM seen.expires_at", SQL_LOCKS),
    Mutant("a flush: not of what is on its way", "tasks/worker/outbox.py",
           "self._sent_at if self.writer.sent else endings[0].finished", "endings[0].finished",
           ("tests/tasks/worker/test_sending.py",)),
    Mutant("a flush: what was sent is read first", "tasks/worker/outbox.py",
           "        self.settle()\n        with self._guard:", "        with self._guard:",
           ("tests/tasks/worker/test_sending.py",)),
    Mutant("compare-and-swap: version", "tasks/locking/optimistic.py", "(pk=instance.pk, version=seen)",
           "(pk=instance.pk)", ("tests/tasks/locking/test_optimistic.py",)),
    Mutant("double check: the second look asks again", DOUBLE_CHECKED, "self.queryset.order_by().filter(pk=key)",
           "self.queryset.model._base_manager.filter(pk=key)", ("tests/tasks/locking/test_double_checked.py",)),
    Mutant("double check: SKIP LOCKED", DOUBLE_CHECKED, 'skip_locked=how == "skip"', "skip_locked=False",
           ("tests/tasks/locking/test_double_checked_locked.py",)),
    Mutant("double check: OF self", DOUBLE_CHECKED, 'of: tuple[str, ...] = ("self",),', "of: tuple[str, ...] = (),",
           ("tests/tasks/locking", "tests/orders/test_shipping.py", "-k", "double_checked")),
    Mutant("transfer: row lock", "orders/accounts.py",
           'Account.objects.select_for_update(of=("self",), no_key=True, nowait=nowait)', "Account.objects.all()",
           ("tests/orders/test_accounts.py",)),
    Mutant("an action: the version that was seen", "tasks/actions/chunks.py", "return None if seen == task.version",
           "return None if True", ("tests/tasks/test_actions_chunks.py",)),
    Mutant("an action: SKIP LOCKED", "tasks/actions/chunks.py", "no_key=True, skip_locked=True", "no_key=True",
           ("tests/tasks/test_actions_chunks.py",)),
    Mutant("an action: in chunks", "tasks/actions/chunks.py", "CHUNK = 1000\n", "CHUNK = 10**9\n",
           ("tests/races/test_operators.py", "-k", "everything")),
    Mutant("an action: limit of waits", "tasks/actions/chunks.py", "lock_timeout = '2s'", "lock_timeout = '0'",
           ("tests/tasks/test_actions_chunks.py", "-k", "table_held_whole")),
    Mutant("a requeue: live tasks", "tasks/actions/requeue.py",
           "task.status == TaskStatus.PROCESSING and not self.is_stale(task) and not self.force", "False",
           ("tests/tasks/test_commands_requeue.py",)),
    Mutant("a cancel: live tasks", "tasks/actions/cancel.py",
           "return task.status == TaskStatus.PROCESSING and not self.is_stale(task)", "return False",
           ("tests/tasks/test_commands_cancel.py",)),
    Mutant("an edit: held tasks", "tasks/actions/edit.py", "if task.status == TaskStatus.PROCESSING:", "if False:",
           ("tests/tasks/test_commands_edit.py",)),
    Mutant("pruning: finished tasks only", "tasks/actions/prune.py",
           "task.status = ANY(%(statuses)s::text[]) AND task.finished_at",
           "coalesce(task.finished_at, task.created_at)",
           ("tests/tasks/test_commands_prune.py",)),
    without("pages: statement timeout", DATABASES, "-c statement_timeout=5s ", PAGE_LIMITS),
    without("pages: lock timeout", DATABASES, "-c lock_timeout=2s ", PAGE_LIMITS),
    without("pages: limits are given to their sessions", DATABASES, "session_limits(env, argv), ",
            "tests/dashboard/test_databases.py"),
    without("first page: its own patience", "tasks/panels.py",
            ", set_config('lock_timeout', '300ms', true), set_config('statement_timeout', '2s', true)",
            "tests/dashboard/test_attention.py", "tests/dashboard/test_overview.py"),
    Mutant("pages: seats", "dashboard/seats.py", "max(1, threads - FREE_FOR_ACTIONS)", "threads",
           ("tests/dashboard/test_seats.py",)),
    Mutant("arguments: no NUL", "tasks/reading.py", 'if "\\0" in text:', "if False:", (INPUT,)),
    Mutant("arguments: levels", "tasks/arguments.py", "if depth == MAX_DEPTH:", "if False:", (INPUT,)),
    Mutant("arguments in SQL: size", "tasks/migrations/0018_readable_names.py",
           "IF size > largest THEN", "IF false THEN", (INPUT,)),
    Mutant("a signal: the backend that was seen", BACKENDS, 'if not backend["is_same"]:', "if False:",
           ("tests/dashboard/test_locks_page.py",)),
    Mutant("audit: no entry is changed", OBJECTS, "BEFORE UPDATE OR DELETE ON", "BEFORE DELETE ON",
           ("tests/tasks/test_audit_append_only.py",)),
    Mutant("audit: no entry is removed", OBJECTS, "BEFORE UPDATE OR DELETE ON", "BEFORE UPDATE ON",
           ("tests/tasks/test_audit_append_only.py",)),
    Mutant("a session of one's own behind a proxy", "tasks/pooling.py", "    if is_pooled(connection):",
           "    if False:", ("tests/tasks/worker/test_proxies.py", "-k", "nothing_that_rests")),
]  # fmt: skip
