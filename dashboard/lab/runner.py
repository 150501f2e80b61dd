"""Run one plan: its schema, its processes, their limits on the server, kills, and the result."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import psycopg
from django.db import connections

from dashboard import conf
from dashboard.lab import schema
from dashboard.lab.forkserver import START_SECONDS, Forkserver, RunProcess
from dashboard.lab.measure import FIRST_SPANS, Result, Span, Wait, WaitSampler, measure, read_spans
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.patterns.pattern import NOTE_LEFT, SLOTS, Pattern, keys_left
from dashboard.lab.schema import LabRefused
from dashboard.lab.worker import CREATE_LEDGER, EMPTY_LEDGER, Plan, item_of
from tasks.support import database
from tasks.support.database import connect_directly, session_name

GRACE_SECONDS = 5  # the runner ends a run in time; if it cannot, the server ends what is left
SESSIONS_EACH = 3  # for each process: the pattern's, the ledger's, and that of a named lock
KEPT_FREE = 5  # for other clients

# None of them changes a pattern: a wait this long would last beyond the end of the run.
ENDS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
ENDS_17 = "transaction_timeout"
IDLE = "idle_session_timeout"

# All databases share max_connections; a limit of this database or of this role may be lower.
FREE = """
SELECT least(
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0)
        - (SELECT coalesce(sum(numbackends), 0)::int FROM pg_stat_database),
    (SELECT CASE WHEN datconnlimit >= 0 THEN datconnlimit - pg_stat_get_db_numbackends(oid) END
     FROM pg_database WHERE datname = current_database()),
    (SELECT CASE WHEN rolconnlimit >= 0 THEN rolconnlimit - (
        SELECT count(*)::int FROM pg_stat_activity WHERE usesysid = role.oid) END
     FROM pg_roles AS role WHERE rolname = current_user)
)
"""

DATABASE = ("NAME", "USER", "PASSWORD", "HOST", "PORT")
WATCH_SECONDS = 0.05
STALL_SECONDS = 5.0  # in addition to the time of one item
OVER = "INSERT INTO lab_ledger (kind, worker) VALUES ('over', -1)"
ONLY_RUN = "SELECT pg_try_advisory_lock(hashtext('rowlock:lab'), 0)"
LET_NEXT = "SELECT pg_advisory_unlock(hashtext('rowlock:lab'), 0)"
PROGRESS = """
SELECT count(*) FILTER (WHERE kind = 'effect') AS effects, count(*) FILTER (WHERE kind = 'start') AS starts,
    count(*) AS lines
FROM lab_ledger WHERE kind <> 'touch'
"""
IN_THE_MIDDLE = """
SELECT worker FROM lab_ledger WHERE kind IN ('effect', 'attempt') AND ended IS NULL ORDER BY id DESC
"""
# Its work ended before it was killed: later, another worker may have its place already.
NOTE_KILL = """
WITH cut AS (
    UPDATE lab_ledger SET ended = greatest(began, %(at)s) WHERE worker = %(worker)s::int AND ended IS NULL
)
INSERT INTO lab_ledger (kind, worker, ended) VALUES ('kill', %(worker)s::int, clock_timestamp())
"""
# Only the session of the process that works as this worker now: a pid may be another backend by then.
CUT = """
SELECT pg_terminate_backend(session.pid) FROM (
    SELECT item AS pid, began FROM lab_ledger WHERE kind = 'session' AND worker = %(worker)s::int
    ORDER BY id DESC LIMIT 1
) AS latest JOIN pg_stat_activity AS session ON session.pid = latest.pid AND session.backend_start <= latest.began
WHERE session.application_name = %(name)s::text AND session.datname = current_database()
"""
NOTE_CUT = "INSERT INTO lab_ledger (kind, worker, ended) VALUES ('cut', %(worker)s::int, clock_timestamp())"
STATEMENTS = "SELECT statement, sum(number)::int FROM lab_statement GROUP BY statement ORDER BY 2 DESC, 1"
SEEN_AS_BEFORE = "RESET search_path"
SEEN_ALONE = "SELECT set_config('search_path', %(schema)s::text, false)"


def session_options(plan: Plan, server_version: int, *, start_seconds: int) -> str:
    """The timeouts of a run's sessions, as PostgreSQL's `options`, in case the runner cannot end them.

    `start_seconds`: how long a process may wait for the others before the run begins.
    """
    names = ENDS if server_version < 170_000 else (*ENDS, ENDS_17)
    seconds = plan.seconds + GRACE_SECONDS
    options = [f"-c {name}={seconds}s" for name in names]
    return " ".join([*options, f"-c {IDLE}={seconds + start_seconds}s"])


def refuse_when_crowded(control: psycopg.Connection, plan: Plan) -> None:
    """Raise LabRefused if the run would take the last connections of the server, database or role."""
    [(free,)] = control.execute(FREE).fetchall()
    needed = SESSIONS_EACH * (plan.workers + plan.outside_lockers)
    if needed + KEPT_FREE > free:
        raise LabRefused(
            f"This run needs {needed} connections, and of the {max(0, free)} that are free {KEPT_FREE} are kept for "
            "others: ask for fewer workers and outside lockers, or wait until sessions have ended."
        )


# Called with the number of effects so far; False ends the run.
Progress = Callable[[int], bool]


class Outcome(NamedTuple):
    """The result of a run: numbers, spans, statements with their counts, and waits."""

    result: Result
    spans: list[Span]
    statements: list[tuple[str, int]]
    waits: list[Wait]


def run(
    plan: Plan,
    *,
    progress: Progress = lambda effects: True,
    begun: Callable[[str], object] = lambda schema: None,
    forkserver: Forkserver | None = None,
) -> Outcome:
    """Run the plan in a schema of its own, which is dropped afterwards; `begun` receives its name.

    If the pattern lacks a possible guard, a second part runs with it: it only adds its numbers, as `guarded`.
    `forkserver` starts the processes; sharing one makes successive runs faster.

    Raises LabRefused if it cannot run here.
    """
    pattern = PATTERNS.get(plan.pattern)
    if pattern is None:
        raise LabRefused(f"There is no pattern {plan.pattern!r}: choose one of {', '.join(PATTERNS)}.")
    with connect_directly(session_name("lab", "runner"), answer_seconds=70) as control:
        control.execute("SET statement_timeout = '60s'")
        [(is_only,)] = control.execute(ONLY_RUN).fetchall()
        if not is_only and not plan.alongside:
            raise LabRefused(
                "Another run of the lab is at work on this database: wait until it has ended, or ask for this one "
                "alongside it; the numbers of both suffer then."
            )
        try:
            schema.sweep(control)
            refuse_when_crowded(control, plan)
            with nullcontext(forkserver) if forkserver else closing(Forkserver()) as opened:
                outcome = Run(plan, pattern, control, opened, begun).go(progress)
                if pattern.guard_off and not outcome.result.stopped:
                    with_guard = Run(plan, replace(pattern, guard_off=""), control, opened, begun)
                    guarded = with_guard.go(lambda _: progress(plan.items)).result.as_dict()
                    outcome = outcome._replace(result=replace(outcome.result, guarded=guarded))
                return outcome
        finally:
            if is_only:  # the server may notice the end of a session only after the next run has started
                control.execute(LET_NEXT)


@dataclass
class Run:
    plan: Plan
    pattern: Pattern
    control: psycopg.Connection
    forkserver: Forkserver
    begun: Callable[[str], object]
    schema_name: str = field(default_factory=schema.new_name)
    workers: dict[int, RunProcess] = field(default_factory=dict)
    started: list[RunProcess] = field(default_factory=list)
    kills: int = 0
    cut: set[int] = field(default_factory=set)  # workers whose session was ended, until their process has failed
    cuts: int = 0

    def go(self, progress: Progress) -> Outcome:
        """Fill, start, watch, measure."""
        pattern, control = self.pattern, self.control
        control.execute(SEEN_AS_BEFORE)
        with schema.schema(control, self.schema_name, also=pattern.models):
            self.begun(self.schema_name)
            control.execute(SEEN_ALONE, {"schema": self.schema_name})
            for statement in filter(None, (CREATE_LEDGER, pattern.needs, pattern.guard_off)):
                control.execute(statement)
            self._fill()
            control.execute("ANALYZE")
            waits = WaitSampler(control, session_name("lab", self.schema_name))
            with self._processes() as outsiders:
                stopped = self._watch(progress, waits)
                control.execute(OVER)
                for outsider in outsiders:
                    outsider.wait()
            if pattern.registered:
                left = [item_of(key) for key in keys_left(control, pattern.registered)]
                control.execute(NOTE_LEFT, {"items": left})
            result = measure(control, self.plan, pattern, waits, kills=self.kills, cuts=self.cuts, stopped=stopped)
            spans = read_spans(control, pattern.rows.work, first=FIRST_SPANS)
            return Outcome(result, spans, control.execute(STATEMENTS).fetchall(), waits.kept())

    def _fill(self) -> None:
        """Make the rows; for a registered pattern in a process that sees only this schema."""
        if self.pattern.registered is None:
            self.control.execute(self.pattern.rows.fill, {"items": self.plan.items, "slots": SLOTS})
            return
        process, problem = self._start(-1, "sample"), ""
        try:
            process.wait_until_ready()
            process.send("go")
            process.wait(self.plan.seconds)
            problem = process.error if process.has_failed else ""
        except TimeoutError as error:
            problem = str(error)
        finally:
            process.close()
        number = len(keys_left(self.control, self.pattern.registered))
        if problem or number != self.plan.items:
            raise LabRefused(
                f"The sample of {self.pattern.name} was to make {self.plan.items} rows that meet its criteria, and "
                f"there are {number}. {problem}".strip()
            )
        self.control.execute(EMPTY_LEDGER)  # so that the run begins after its rows are made
        self.started.clear()

    @contextmanager
    def _processes(self) -> Iterator[list[RunProcess]]:
        """Start all processes together, once all are ready; none outlives the block."""
        try:
            self.workers = {number: self._start(number, "worker") for number in range(self.plan.workers)}
            outsiders = [self._start(-1 - number, "outside") for number in range(self.plan.outside_lockers)]
            for process in self.started:
                process.wait_until_ready()
            for process in self.started:
                process.send("go")
            yield outsiders
        finally:
            for process in self.started:
                process.close()

    def _start(self, number: int, role: str) -> RunProcess:
        job = {
            "database": {key: connections["default"].settings_dict[key] for key in DATABASE},
            "schema": self.schema_name,
            "number": number,
            "role": role,
            "limits": session_options(self.plan, self.control.info.server_version, start_seconds=START_SECONDS),
            "plan": self.plan.as_dict(),
        }
        self.started.append(self.forkserver.start(job))
        return self.started[-1]

    def _watch(self, progress: Progress, waits: WaitSampler) -> str:
        """Watch until every worker has ended. Returns the reason if the run was ended early."""
        kills, cuts, moved, at = self.plan.kills(), self.plan.cuts(), 0, time.monotonic()
        deadline = at + self.plan.seconds
        patience = STALL_SECONDS + (self.plan.work_ms + self.plan.remote_ms) / 1000
        while self._replace_cut() or not all(worker.poll() for worker in self.workers.values()):
            waits.sample()
            [(effects, starts, lines)] = self.control.execute(PROGRESS).fetchall()
            if lines != moved or starts < len(self.started):  # a starting process cannot move
                moved, at = lines, time.monotonic()
            if kills and effects >= kills[0][0]:
                self._kill(kills.pop(0)[1])
            if cuts and effects >= cuts[0][0]:
                self._cut(cuts.pop(0)[1])
            if not progress(effects):
                return "stopped by a person"
            if time.monotonic() > deadline:
                return f"not ended after {self.plan.seconds} s"
            if time.monotonic() > at + patience:
                return f"nothing moved for {patience:.0f} s"
            time.sleep(WATCH_SECONDS)
        failed = [number for number, worker in self.workers.items() if worker.has_failed]
        if not failed:
            return ""
        numbers, error = ", ".join(map(str, failed)), self.workers[failed[0]].error
        return f"worker {numbers} ended with an error{': ' if error else ''}{error}"

    def _kill(self, number: int) -> None:
        """Kill a worker in the middle of an effect, and start another one instead."""
        victim = self._busy(number)
        if victim is None:
            return
        at = database.now(self.control)
        self.workers[victim].kill()
        self.control.execute(NOTE_KILL, {"worker": victim, "at": at})
        self.kills += 1
        self._replace(victim)

    def _cut(self, number: int) -> None:
        """End the session of a worker in the middle of an effect, whose process works on until it needs it."""
        victim = self._busy(number)
        params = {"worker": victim, "name": session_name("lab", self.schema_name)}
        if victim is not None and self.control.execute(CUT, params).fetchall() == [(True,)]:
            self.cut.add(victim)
            self.cuts += 1

    def _replace_cut(self) -> bool:
        """Start another worker instead of each that has failed because its session was ended; True if one had."""
        failed = [number for number in self.cut if self.workers[number].has_failed]
        for number in failed:
            self.control.execute(NOTE_CUT, {"worker": number})
            self._replace(number)
        return bool(failed)

    def _busy(self, number: int) -> int | None:
        """A worker in the middle of an effect; if there is none `number`, or another one that lives."""
        busy = [worker for (worker,) in self.control.execute(IN_THE_MIDDLE).fetchall()]
        able = (worker for worker in (*busy, number, *self.workers) if worker not in self.cut)
        return next((worker for worker in able if not self.workers[worker].poll()), None)

    def _replace(self, number: int) -> None:
        self.cut.discard(number)
        self.workers[number] = self._start(number, "worker")
        self.workers[number].send("go")  # it begins when it is ready, because the others do not wait for it


def is_allowed() -> bool:
    """True if ROWLOCK_LAB is on; by default it is on only for the embedded server."""
    return bool(conf.get("LAB"))


def refuse_unless_allowed() -> None:
    if not is_allowed():
        raise LabRefused(
            "The lab creates schemas and loads the server, so it is off on a database of your own. "
            "Set ROWLOCK_LAB=1 to allow it here."
        )
