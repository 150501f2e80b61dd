"""`show_locks`: show sessions, who waits for whom with which locks, and held rows."""

from typing import Any

from django.core.management.base import CommandParser
from django.db import connection

from dashboard.attention.sessions import is_open_too_long
from dashboard.attention.thresholds import USUAL
from dashboard.locks import activity, attribution, signals
from dashboard.locks.activity import Activity
from dashboard.locks.attribution import Behind, TableNames, behind, by_table
from dashboard.locks.limits import PERSON_STATEMENT_MS, Unavailable, limited
from dashboard.locks.tree import Lock, Session, TreeLine, tree_lines, wait_in_words
from tasks.commands import OperatorCommand, Options, Report, UsageError, types
from tasks.commands.output import Part, Table, branches
from tasks.support import tracing
from tasks.support.durations import spoken

HEADINGS = ("PID", "WHO", "STATE", "TRANSACTION", "BLOCKED BY", "QUERY")
LONGEST_QUERY = 200


class Command(OperatorCommand):
    help = (
        "Show the sessions of this database, the locks of those that wait or block, who blocks whom, and which of the "
        "rows that operators look at are held: PROCESSING tasks, the next 200 READY ones, the newest 200 orders and "
        "accounts, and those named by --table and --ids."
    )
    examples = ("--tree", "--blocked --watch 5")
    changes_data = False
    is_watchable = True

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--blocked", action="store_true", help="Only sessions that wait or make others wait.")
        parser.add_argument("--tree", action="store_true", help="For people: as a tree under the root blockers.")
        parser.add_argument("--table", type=types.name, metavar="T", help="Look at rows of this table too.")
        parser.add_argument("--ids", type=types.row_id, nargs="+", default=[], metavar="N", help="Their keys.")

    def run(self, options: Options) -> Report:
        if bool(options["table"]) != bool(options["ids"]):
            raise UsageError("Give --table and --ids together: which rows of which table.")
        with limited(connection, PERSON_STATEMENT_MS):
            seen = activity.read(with_held=True)
            names = attribution.read_names(options["table"], options["ids"])
        sessions = list(seen.sessions)
        if options["blocked"]:
            involved = activity.involved_pids(sessions)
            sessions = [session for session in sessions if session.pid in involved]
        return Report(data=as_data(seen, sessions, names), text=as_text(seen, sessions, names, is_tree=options["tree"]))


def as_data(seen: Activity, sessions: list[Session], names: TableNames) -> dict[str, Any]:
    blockers: dict[int, list[int]] = {}
    for session in seen.blocked:
        for pid in session.blocked_by:
            blockers.setdefault(pid, []).append(session.pid)
    return {
        "sessions": [session_data(session) for session in sessions],
        "locks": [lock_data(seen, lock) for lock in seen.locks],
        "blockers": [blocker_data(seen, pid, blocked) for pid, blocked in sorted(blockers.items())],
        "circles": seen.circles,
        "rows": [{"table": row.table, "id": row.id, "pid": row.pid, "hold": row.lock.hold} for row in names.held],
        "unavailable": [{"table": table.table, "pid": table.pid} for table in unavailable(seen, names)],
        "hidden": seen.hidden,
        "capped": seen.is_capped,
    }


def session_data(session: Session) -> dict[str, Any]:
    return {
        "pid": session.pid,
        "who": str(session.identity),
        "application_name": session.application_name,
        "role": session.role,
        "client": session.client,
        "started": session.backend_start.isoformat() if session.backend_start else None,
        "state": session.state,
        "wait_event": session.wait_event,
        "transaction_seconds": session.transaction_seconds,
        "state_seconds": session.state_seconds,
        "query": session.query,
        "blocked_by": list(session.blocked_by),
        "task_id": session.task_id,
        "trace_id": tracing.trace_id_of(session.traceparent) or None,
        "trace_url": tracing.trace_url(session.traceparent) or None,
    }


def blocker_data(seen: Activity, pid: int, blocked: list[int]) -> dict[str, Any]:
    """A blocker; without a pid it is no session of this server (a lease, a prepared transaction)."""
    who = str(seen.by_pid[pid].identity) if pid in seen.by_pid else None
    return {"pid": pid if pid > 0 else None, "who": who, "blocked": sorted(blocked)}


def lock_data(seen: Activity, lock: Lock) -> dict[str, Any]:
    session = seen.by_pid.get(lock.pid)
    return {
        "pid": lock.pid,
        "locktype": lock.locktype,
        "mode": lock.mode,
        "granted": lock.granted,
        "relation": lock.relation,
        "name": lock.name,
        "row": {"table": lock.row.table, "id": lock.row.id} if lock.row else None,
        "wait_seconds": lock.wait_seconds,
        "query": session.query if session else None,
        "holder": str(session.identity) if session else None,
    }


def unavailable(seen: Activity, names: TableNames) -> tuple[Unavailable, ...]:
    return by_table(seen.unavailable | names.unavailable)


def as_text(seen: Activity, sessions: list[Session], names: TableNames, *, is_tree: bool) -> list[Part]:
    first = tree(seen, names) if is_tree else Table(HEADINGS, [session_row(session) for session in sessions])
    parts: list[Part] = [first, *map(str, unavailable(seen, names))]
    for circle in seen.circles:
        parts.append(f"A circle, which never ends by itself: {' → '.join(map(str, (*circle, circle[0])))}")
    if names.held:
        held = [(f"{row.table} {row.id}", row.pid or row.lock.hold) for row in names.held]
        parts.append(Table(("ROW", "HELD BY"), held))
    if commands := ending(seen, names):
        parts.append("\n".join(("End a session that holds up others or has been open for long:", *commands)))
    parts += missing_grants(seen)
    if seen.is_capped:
        parts.append(f"Only the first {activity.SESSION_CAP} sessions are shown.")
    return parts


def missing_grants(seen: Activity) -> list[str]:
    """The rights that the role of this command lacks, and how much it does not see without them."""
    rights, found = attribution.grants(), []
    role = rights["role"]
    if not rights["sees_all"]:
        hidden = f"{seen.hidden} of {len(seen.sessions)} sessions hide their state and query from role {role}"
        found.append(f"{hidden}: GRANT pg_read_all_stats TO {role}")
    if not rights["may_signal"]:
        found.append(f"Role {role} may end only its own sessions: GRANT pg_signal_backend TO {role}")
    return found


def ending(seen: Activity, names: TableNames) -> list[str]:
    """The commands that end the roots, the sessions that lock our tables, and transactions open too long."""
    lockers = {table.pid for table in unavailable(seen, names)}
    # The usual limits: the thresholds that people have set are in a table, which may be the locked one.
    others = [session for session in seen.sessions if session.pid in lockers or is_open_too_long(session, USUAL)]
    sessions = {session.pid: session for session in (*(root.session for root in seen.roots), *others)}
    return [
        signals.shell(pid, session.backend_start, "terminate")
        for pid, session in sessions.items()
        if session.may_be_signalled and session.backend_start
    ]


def tree(seen: Activity, names: TableNames) -> Part:
    found = tree_lines(seen.roots)
    works = behind(seen, names.held, names.tasks)
    left_out = sum(1 + root.victims for root in seen.roots) - len(found)
    if not found:
        return "Nobody waits for a lock."
    lines = [(line.indent - 1, tree_line(line, works.get(line.node.session.pid))) for line in found]
    return branches([*lines, *([(0, f"… and {left_out} more")] if left_out else [])])


def tree_line(line: TreeLine, work: Behind | None) -> str:
    """`902  worker w7f · waits 4 min for order 1042 (…) · 2 blocked · task 4711 … · active · UPDATE …`."""
    session, waits = line.node.session, line.node.waits_for
    parts = [
        str(session.identity) if session.is_outsider else f"{session.pid}  {session.identity}",
        wait_in_words(waits) if waits else "",
        f"{line.node.victims} blocked" if line.node.blocked else "",
        f"task {work.task.id} {work.task.task_path}" if work and work.task else "",
        f"trace {trace_of(work.traceparent)}" if work and work.traceparent else "",
        f"holds {', '.join(map(str, work.rows))}" if work and work.rows else "",
        session.state or "",
        f"transaction open for {spoken(session.transaction_seconds)}" if session.transaction_seconds else "",
        one_line(session.query),
    ]
    return " · ".join(filter(None, parts))


def trace_of(traceparent: str) -> str:
    """The address of the trace's page; without one its id."""
    return tracing.trace_url(traceparent) or tracing.trace_id_of(traceparent)


def session_row(session: Session) -> tuple[Any, ...]:
    transaction = None if session.transaction_seconds is None else spoken(session.transaction_seconds)
    blocked_by = ", ".join(map(str, session.blocked_by)) or None
    return session.pid, str(session.identity), session.state, transaction, blocked_by, one_line(session.query)


def one_line(query: str) -> str:
    text = " ".join(query.split())
    return text if len(text) <= LONGEST_QUERY else text[: LONGEST_QUERY - 1] + "…"
