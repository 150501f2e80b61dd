"""What handlers of a drill reach out to: a mail server, accounts with money, and locks in Redis. Each is an oracle."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby, pairwise

from tests.chaos.effects import holdings
from tests.chaos.effects import tasks as outside
from tests.chaos.effects.holdings import Holding
from tests.databases import ROOT, QueueDatabase
from tests.ledger import Ledger
from tests.processes import HANDLERS_APP
from tests.redis import RedisServer
from tests.smtp import MailServer

ACCOUNTS, BALANCE = 12, 1000
LOCKS = 2
# One of each in so many tasks; the rest of the division by it, so that no two fall on one number or on a keyed task.
EVERY = 40
MAILS, MONEY, HOLD = (1, 21), (7, 27), (13,)

MAKE_ACCOUNTS = """
WITH owner AS (
    INSERT INTO auth_user (username, password, is_superuser, first_name, last_name, email, is_staff, is_active,
        date_joined) VALUES ('chaos', '', false, '', '', '', false, true, now()) RETURNING id
), account AS (
    INSERT INTO orders_account (owner, balance) SELECT owner.id, %(balance)s
    FROM owner, generate_series(1, %(count)s) RETURNING id
)
INSERT INTO orders_entry (account_id, amount, kind) SELECT id, %(balance)s, 'deposit' FROM account
RETURNING account_id
"""
MAKE_ORDER = "INSERT INTO orders_order (customer_email, shipped_at) VALUES (%s, now())"
UNBALANCED = """
SELECT count(*) FROM orders_account AS account
WHERE balance <> (SELECT sum(amount) FROM orders_entry AS entry WHERE entry.account_id = account.id)
"""
UNSENT = "SELECT count(*) FROM orders_order WHERE NOT shipped_email_sent OR email_state <> 'sent'"
TRANSFERS = "SELECT count(DISTINCT transfer_id) FROM orders_entry WHERE transfer_id IS NOT NULL"


@dataclass
class World:
    """Servers that no drill breaks, and what was put into the database beside the queue."""

    mail: MailServer
    redis: RedisServer
    seed: int = 0
    orders: int = 0
    accounts: list[int] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """For the workers' environment."""
        apps = f"{HANDLERS_APP},{outside.__package__}"
        return {"EMAIL_URL": self.mail.url, "REDIS_URL": self.redis.url, "ROWLOCK_APPS": apps}

    def prepare(self, database: QueueDatabase, ledger: Ledger) -> None:
        holdings.prepare(ledger)
        made = database.connection.execute(MAKE_ACCOUNTS, {"count": ACCOUNTS, "balance": BALANCE})
        self.accounts = [row.account_id for row in made]

    def enqueue(self, database: QueueDatabase, number: int) -> bool:
        """Whether the task of this number is one that reaches out; then it is enqueued."""
        place = number % EVERY
        if place in MAILS:
            self.orders += 1
            database.rows(MAKE_ORDER, f"customer{self.orders}@example.test")
            database.enqueue(outside.mail)
        elif place in MONEY:
            database.enqueue(outside.move_money, self.seed, self.accounts)
        elif place in HOLD:
            database.enqueue(outside.hold, f"lock {number // EVERY % LOCKS}")
        return place in (*MAILS, *MONEY, *HOLD)

    def finish(self, database: QueueDatabase) -> None:
        """What a cron line does anyway: the e-mails that a killed sender has left."""
        environment = {**os.environ, **self.variables, "DATABASE_URL": database.url}
        environment["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        command = [sys.executable, "manage.py", "send_shipped_emails", "--until-empty", "--mode", "send_first", "-v0"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        identities = {mail.message_id for mail in self.mail.accepted}
        [(balance,)] = database.rows("SELECT sum(balance)::int FROM orders_account")
        self.figures = {
            "e-mails": self.orders,
            "e-mails lost": max(self.orders - len(identities), database.value(UNSENT)),
            "e-mails repeated": self.mail.duplicates(),
            "transfers": database.value(TRANSFERS),
            "money gained or lost": balance - ACCOUNTS * BALANCE,
            "accounts that differ from their entries": database.value(UNBALANCED),
        }

    def account(self, ledger: Ledger, struck_at: Callable[[int], datetime | None]) -> dict[str, int]:
        """What the mail server, the accounts and the locks say."""
        held = holdings.all_of(ledger)
        wrong = sum(
            not is_after(earlier, later, struck_at(earlier.pid))
            for _, times in groupby(held, key=lambda holding: holding.name)
            for earlier, later in pairwise(times)
        )
        return {**self.figures, "locks held": len(held), "locks held by two, or fences out of order": wrong}


def is_after(earlier: Holding, later: Holding, struck: datetime | None) -> bool:
    """Whether a lock was given on with a higher fence once its holder had ended, or was struck."""
    ends = [moment for moment in (earlier.ended, struck) if moment]
    return bool(ends) and later.began >= min(ends) and later.fence > earlier.fence
