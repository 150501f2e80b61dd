"""The demo: harmless work on its own queues and orders, with every trouble that an operator meets.

Its queues have names that begin with `demo-`. Its orders and the owners of its accounts have addresses in
`@example.test`, which no mail reaches (RFC 2606).
`dashboard_demorow` lists all of it; nothing that is not listed is ever removed.
"""

import os

from tasks.support.reading import DEMO_QUEUES as PREFIX

DOMAIN = "@example.test"
REPORTS, MAIL, BILLING, PAYOUTS, PARCELS = (
    f"{PREFIX}{name}" for name in ("reports", "mail", "billing", "payouts", "parcels")
)
QUEUES = (REPORTS, MAIL, BILLING, PAYOUTS, PARCELS)
NIGHTLY = f"{PREFIX}nightly-report"  # a scheduled command that nobody starts
ACTOR = "demo"  # in the audit and in the lab's runs
MINUTES = 15  # lifetime of the director


def is_on() -> bool:
    """True if `up` serves this site with the demo; other sites run no query for it."""
    return os.environ.get("ROWLOCK_DEMO") == "1"
