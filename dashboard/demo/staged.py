"""The demo's scenes: the page of each, its state, and a suggestion to try."""

from dataclasses import dataclass

from django.db import connection
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from dashboard import demo
from tasks.database import fetch

# Each count stops at a hundred. FAILED and PROCESSING rows have indexes of their own; that of READY rows begins with
# the queue.
STATE = """
SELECT
    (SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name ^@ 'rowlock:demo:' AND wait_event_type = 'Lock'
    ) AS waiting,
    (SELECT count(*) FROM (SELECT FROM tasks_task WHERE status = 'PROCESSING' AND queue_name = %(payouts)s::text
                           LIMIT 100) AS t) AS payouts,
    (SELECT count(*) FROM (SELECT FROM tasks_task WHERE status = 'FAILED' AND queue_name = %(billing)s::text
                           ORDER BY id DESC LIMIT 100) AS t) AS failed,
    (SELECT count(*) FROM (SELECT FROM tasks_task WHERE status = 'READY' AND ordering_key = 'demo-konrad'
                           LIMIT 100) AS t) AS keyed,
    (SELECT count(*) FROM (SELECT FROM orders_order
                           WHERE shipped_at IS NOT NULL AND NOT shipped_email_sent AND email_state = 'none'
                             AND customer_email LIKE '%%' || %(domain)s::text LIMIT 100) AS o) AS to_mail,
    (SELECT count(*) FROM (SELECT FROM orders_order
                           WHERE shipped_at IS NOT NULL AND NOT shipped_email_sent AND email_state = 'unknown'
                             AND customer_email LIKE '%%' || %(domain)s::text LIMIT 100) AS o) AS unknown,
    (SELECT count(*) FROM (SELECT FROM tasks_task
                           WHERE status = 'READY' AND ordering_key IS NULL AND queue_name = %(reports)s::text
                           LIMIT 100) AS t) AS trickled,
    (SELECT count(*) FROM (SELECT FROM dashboard_labrun WHERE actor = %(actor)s::text AND state = 'finished'
                           LIMIT 100) AS r) AS compared,
    (SELECT count(*) FROM tasks_expectedcommand WHERE name = %(nightly)s::text AND succeeded_at IS NULL) AS overdue
"""


@dataclass(frozen=True)
class Scene:
    """One scene. `number`: how much of it there is (0: over); `url`: its page; `hint`: what to try there."""

    name: str
    title: Promise
    number: int
    url: str
    hint: Promise


def scenes() -> list[Scene]:
    """All scenes, in the order in which a visitor might look at them. One statement."""
    [now] = fetch(connection, STATE, _parameters())
    tasks, locks = reverse("admin:tasks_task_changelist"), reverse("admin:ops_locks")
    orders = reverse("admin:orders_order_changelist")
    return [
        Scene("chain", _("Sessions in a chain, each waiting for the one before"), now["waiting"], locks,
              _("Terminate the first one, and watch the chain dissolve.")),
        Scene("payout", _("A payout whose worker was killed"), now["payouts"], reverse("admin:ops_stale"),
              _("Its queue asks a person: take it back, and a living worker runs it.")),
        Scene("failures", _("Cards that were declined"), now["failed"],
              f"{tasks}?queue={demo.BILLING}&status=FAILED",
              _("One cause, many tasks: run all of them again at once.")),
        Scene("key", _("Invoices behind one that failed"), now["keyed"],
              f"{tasks}?queue={demo.BILLING}&status=READY",
              _("The first holds the key until its next attempt; cancel it, and the others go.")),
        Scene("orders", _("Orders to mail"), now["to_mail"], orders,
              _("Ship the e-mails: the rows that the chain holds are passed by, and sent the next time.")),
        Scene("unknown", _("An e-mail of unknown fate"), now["unknown"], orders,
              _("The mail server never answered. Say whether it went out.")),
        Scene("cron", _("A cron line that silently stopped"), now["overdue"], reverse("admin:ops_schedule"),
              _("Nobody has started it for two days.")),
        Scene("lab", _("Patterns of locking, compared on this machine"), now["compared"], reverse("admin:ops_lab"),
              _("Three of them sent the same e-mails from two processes at once. Which sent some twice?")),
        Scene("trickle", _("Two tasks a second"), now["trickled"], f"{tasks}?queue={demo.REPORTS}",
              _("So that something moves, while the director runs.")),
    ]  # fmt: skip


def _parameters() -> dict[str, str]:
    return {
        "actor": demo.ACTOR,
        "reports": demo.REPORTS,
        "payouts": demo.PAYOUTS,
        "billing": demo.BILLING,
        "nightly": demo.NIGHTLY,
        "domain": demo.DOMAIN,
    }
