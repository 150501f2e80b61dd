"""Everything that keeps VACUUM from cleaning up, and tables that grow faster than they are pruned.

Sessions, replication slots, standbys and prepared transactions keep dead rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _
from psycopg import sql

from dashboard import links
from dashboard.attention import thresholds
from dashboard.attention.sessions import SEE, open_too_long, pids_of_blockers
from dashboard.locks.limits import PREPARED
from dashboard.numbers import decimal
from dashboard.table_sizes import grown
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.panels import AttentionLine, Severity, Snapshot, Step
from tasks.support.database import fetch
from tasks.support.durations import spoken

# `inactive_since` exists from PostgreSQL 17 on. A walsender's own xmin is the one of its standby or slot.
HOLDING = """
WITH holder AS (
    SELECT 'session' AS kind, pid, pid::text AS name, greatest(age(backend_xmin), age(backend_xid)) AS transactions,
        xact_start AS since, coalesce(nullif(application_name, ''), usename, '') AS detail,
        datname IS NOT DISTINCT FROM current_database() AS is_here
    FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type <> 'walsender'
    UNION ALL
    SELECT 'slot', NULL, slot_name, greatest(age(xmin), age(catalog_xmin)),
        (to_jsonb(slot) ->> 'inactive_since')::timestamptz, CASE WHEN active THEN 'active' ELSE '' END, true
    FROM pg_replication_slots AS slot
    UNION ALL
    SELECT 'standby', NULL, coalesce(nullif(application_name, ''), pid::text), age(backend_xmin), NULL::timestamptz,
        coalesce(client_addr::text, ''), true
    FROM pg_stat_replication
    UNION ALL
    SELECT 'prepared', NULL, gid, age(transaction), prepared, database, database = current_database()
    FROM pg_prepared_xacts
)
SELECT kind, pid, name, transactions, since, detail, is_here,
    (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = to_regclass('tasks_task')) AS dead_rows
FROM holder
WHERE transactions IS NOT NULL AND (transactions >= %(transactions)s::int
    OR kind = 'prepared' AND since < statement_timestamp() - make_interval(secs => %(seconds)s::int))
ORDER BY transactions DESC, kind, name LIMIT 10
"""


@dataclass(frozen=True)
class Holding:
    """One holder: a session by pid, a slot or standby by name, a prepared transaction by its identifier.

    `detail`: a session's program, `active` for a slot that is read, a standby's address, a transaction's database.
    `dead_rows`: of the table of tasks, whoever holds them.
    """

    kind: str
    name: str
    transactions: int
    since: datetime | None
    detail: str
    is_here: bool
    dead_rows: int | None = None
    pid: int | None = None


def everything() -> list[dict[str, Any]]:
    """The holders from the lowest thresholds on; the source takes those past the present ones."""
    return fetch(connection, HOLDING, {"transactions": 1000, "seconds": 10})


@panels.attention
def held_back(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Whatever keeps dead rows from being removed, unless it has a line already: as blocker or open transaction."""
    limits, has_line = thresholds.values(snapshot), pids_of_blockers(snapshot)
    has_line |= {session.pid for session in open_too_long(snapshot)}
    for holding in (Holding(**row) for row in snapshot.once(everything)):
        age = (snapshot.now - holding.since).total_seconds() if holding.since else 0.0
        is_old = holding.kind == "prepared" and age > limits["open_seconds"]
        pid = {"session": holding.pid, "prepared": PREPARED}.get(holding.kind)
        if (holding.transactions >= limits["held_transactions"] or is_old) and pid not in has_line:
            yield line_of(holding, age)


def line_of(holding: Holding, age: float) -> AttentionLine:
    who, why, step = NAMED[holding.kind](holding)
    text = _("VACUUM cannot remove dead rows of the last %(number)s transactions: %(who)s.")
    if holding.since:
        why = " ".join((_("It has held them for %(age)s.") % {"age": spoken(age)}, why))
    if holding.dead_rows:
        why = " ".join(
            (why, _("The table of tasks has %(number)s dead rows.") % {"number": decimal(holding.dead_rows)})
        )
    return AttentionLine(
        key=f"held:{holding.kind}:{holding.name}",
        text=text % {"number": decimal(holding.transactions), "who": who},
        brief=_("VACUUM held back by %(who)s") % {"who": who},
        severity=Severity.SLOW,
        why=why,
        since=holding.since,
        size=holding.transactions,
        step=step,
        permission=SEE,
    )


def session(holding: Holding) -> tuple[str, str, Step]:
    who = _("pid %(pid)s (%(name)s)") % {"pid": holding.name, "name": holding.detail}
    ending = f"select pg_terminate_backend({holding.pid});"
    if holding.is_here:
        page = f"{links.page('admin:ops_locks')}#node-{holding.name}"
        return who, _("Its transaction is open."), Step(_("See the session"), page, ending)
    return who, _("Its transaction is open, in another database of the server."), Step("", "", ending)


def slot(holding: Holding) -> tuple[str, str, Step]:
    who, name = _("replication slot %(name)s") % {"name": holding.name}, sql.Literal(holding.name).as_string()
    if holding.detail:
        why = _("Its reader is connected, but far behind. A standby reports its own long queries here.")
        return who, why, Step()
    why = _("Nobody reads it. Start its reader, or drop the slot if there will be none.")
    return who, why, Step(command=f"select pg_drop_replication_slot({name});")


def standby(holding: Holding) -> tuple[str, str, Step]:
    who = _("standby %(name)s %(address)s") % {"name": holding.name, "address": holding.detail}
    why = _("A long query runs there, and hot_standby_feedback reports it. Find the query on the standby.")
    oldest = "select pid, xact_start, query from pg_stat_activity order by xact_start limit 5;"
    return who.strip(), why, Step(command=oldest)


def prepared(holding: Holding) -> tuple[str, str, Step]:
    who = _("prepared transaction %(name)s") % {"name": holding.name}
    why = _("Its transaction manager has neither committed it nor rolled it back (database %(name)s).")
    return (
        who,
        why % {"name": holding.detail},
        Step(command=f"ROLLBACK PREPARED {sql.Literal(holding.name).as_string()};"),
    )


NAMED = {"session": session, "slot": slot, "standby": standby, "prepared": prepared}


@panels.attention
def growing(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Tables whose files have grown a lot within a day."""
    limits = thresholds.values(snapshot)
    for found in snapshot.once(grown):
        more = found["now"] - found["was"]
        if more < limits["grown_megabytes"] * 10**6 or 100 * more < limits["grown_percent"] * found["was"]:
            continue
        text = _("The table %(name)s has grown by %(more)s in %(age)s, to %(size)s.")
        sizes = {"more": filesizeformat(more), "size": filesizeformat(found["now"])}
        shell = "prune_tasks" if found["name"] == "tasks_task" else "prune_history"
        yield AttentionLine(
            key=f"growing:{found['name']}",
            text=text % {"name": found["name"], "age": spoken(found["seconds"]), **sizes},
            severity=Severity.SLOW,
            why=_("More is written than pruned. Let cron prune more often, or keep rows for a shorter time."),
            since=found["since"],
            size=more // 10**6,
            step=Step(
                _("See the runs of cron"), links.page("admin:ops_schedule"), command(shell, "--older-than", "7d")
            ),
            permission="tasks.view_commandrun",
        )
