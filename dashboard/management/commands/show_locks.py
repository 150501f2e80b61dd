"""`show_locks`: who waits for whom, with which locks, and which rows are held."""

from typing import Any

from django.core.management.base import CommandParser

from dashboard import activity, held_rows
from dashboard.activity import Activity, Lock, Node, Session
from dashboard.held_rows import HeldRow
from tasks.ages import spoken
from tasks.commands import OperatorCommand, Options, Report, UsageError, types
from tasks.commands.output import table

HEADINGS = ("PID", "WHO", "STATE", "TRANSACTION", "BLOCKED BY", "QUERY")
QUERY_WIDTH = 60


class Command(OperatorCommand):
    help = (
        "Show the sessions of this database, the locks of those that wait or block, who blocks whom, and which of the "
        "rows that operators look at are held: PROCESSING tasks, the next 200 READY ones, the newest 200 orders and "
        "accounts, and those named by --table and --ids."
    )
    changes_data = False

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--blocked", action="store_true", help="Only sessions that wait or make others wait.")
        parser.add_argument("--tree", action="store_true", help="For people: as a tree under the root blockers.")
        parser.add_argument("--table", type=types.name, metavar="T", help="Look at rows of this table too.")
        parser.add_argument("--ids", type=types.task_id, nargs="+", default=[], metavar="N", help="Their keys.")

    def run(self, options: Options) -> Report:
        if bool(options["table"]) != bool(options["ids"]):
            raise UsageError("Give --table and --ids together: which rows of which table.")
        seen = activity.look()
        rows = held_rows.look(options["table"], options["ids"])
        sessions = shown(seen, only_blocked=options["blocked"])
        return Report(data=as_data(seen, sessions, rows), text=as_text(seen, sessions, rows, is_tree=options["tree"]))


def shown(seen: Activity, *, only_blocked: bool) -> list[Session]:
    """All sessions, or those that wait or block."""
    if not only_blocked:
        return list(seen.sessions)
    involved = {pid for session in seen.blocked for pid in (session.pid, *session.blocked_by)}
    return [session for session in seen.sessions if session.pid in involved]


def as_data(seen: Activity, sessions: list[Session], rows: list[HeldRow]) -> dict[str, Any]:
    blockers: dict[int, list[int]] = {}
    for session in seen.blocked:
        for pid in session.blocked_by:
            blockers.setdefault(pid, []).append(session.pid)
    return {
        "sessions": [session_data(session) for session in sessions],
        "locks": [lock_data(seen, lock) for lock in seen.locks],
        "blockers": [{"pid": pid, "blocked": sorted(blocked)} for pid, blocked in sorted(blockers.items())],
        "rows": [{"table": row.table, "id": row.id, "pid": row.pid, "hold": row.lock.hold} for row in rows],
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
        "started": session.backend_start.isoformat(),
        "state": session.state,
        "wait_event": session.wait_event,
        "transaction_seconds": session.transaction_seconds,
        "state_seconds": session.state_seconds,
        "query": session.query,
        "blocked_by": list(session.blocked_by),
    }


def lock_data(seen: Activity, lock: Lock) -> dict[str, Any]:
    session = seen.by_pid.get(lock.pid)
    return {
        "pid": lock.pid,
        "locktype": lock.locktype,
        "mode": lock.mode,
        "granted": lock.granted,
        "relation": lock.relation,
        "name": lock.name,
        "wait_seconds": lock.wait_seconds,
        "query": session.query if session else None,
        "holder": str(session.identity) if session else None,
    }


def as_text(seen: Activity, sessions: list[Session], rows: list[HeldRow], *, is_tree: bool) -> str:
    parts = [tree(seen) if is_tree else table(HEADINGS, [session_row(session) for session in sessions])]
    if rows:
        parts.append(table(("ROW", "HELD BY"), [(f"{row.table} {row.id}", row.pid or row.lock.hold) for row in rows]))
    if seen.hidden:
        parts.append(f"{seen.hidden} sessions hide their queries from this role: GRANT pg_read_all_stats to it.")
    if seen.is_capped:
        parts.append(f"Only the first {activity.SESSION_CAP} sessions are shown.")
    return "\n\n".join(parts)


def tree(seen: Activity) -> str:
    lines = [line for root in seen.roots for line in tree_lines(root, "")]
    return "\n".join(lines) or "Nobody waits for a lock."


def tree_lines(node: Node, indent: str) -> list[str]:
    waits = node.waits_for
    told = f" · waits {spoken(waits.wait_seconds or 0)} for {waits.locktype} {waits.relation or ''}" if waits else ""
    session = node.session
    blocked = f" · {node.victims} blocked" if node.blocked else ""
    head = f"{indent}{session.pid}  {session.identity} · {session.state}{told}{blocked} · {one_line(session.query)}"
    return [head, *(line for below in node.blocked for line in tree_lines(below, indent + "  "))]


def session_row(session: Session) -> tuple[Any, ...]:
    transaction = None if session.transaction_seconds is None else f"{session.transaction_seconds:.1f} s"
    blocked_by = ", ".join(map(str, session.blocked_by)) or None
    return session.pid, str(session.identity), session.state, transaction, blocked_by, one_line(session.query)


def one_line(query: str) -> str:
    text = " ".join(query.split())
    return text if len(text) <= QUERY_WIDTH else text[: QUERY_WIDTH - 1] + "…"
