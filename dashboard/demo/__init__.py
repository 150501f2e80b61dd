"""The demo: harmless work on queues and orders of its own, with every trouble in it that an operator meets.

What it makes lies in queues whose names begin with `demo-` and in orders to `@example.test`, an address that no mail
reaches (RFC 2606). `dashboard_demorow` lists all of it, and nothing that is not listed there is ever removed.
"""

import os

from tasks.reading import DEMO_QUEUES as PREFIX

DOMAIN = "@example.test"
REPORTS, MAIL, BILLING, PAYOUTS, PARCELS = (
    f"{PREFIX}{name}" for name in ("reports", "mail", "billing", "payouts", "parcels")
)
QUEUES = (REPORTS, MAIL, BILLING, PAYOUTS, PARCELS)
NIGHTLY = f"{PREFIX}nightly-report"  # a cron line that nobody starts
ACTOR = "demo"  # in the audit, and of the runs of the lab
MINUTES = 15  # that the director lives


def is_on() -> bool:
    """Whether `up` serves this site with the demo; a site of your own asks the database nothing about it."""
    return os.environ.get("ROWLOCK_DEMO") == "1"


# A worker that is started to be killed takes its time over a first attempt, so that it dies in the middle of one.
VICTIM = "ROWLOCK_DEMO_VICTIM"
