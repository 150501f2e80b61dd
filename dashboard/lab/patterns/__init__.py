"""The patterns of the lab: each is the project's own code path, run by several processes at once."""

from dashboard.lab.patterns import accounts as accounts
from dashboard.lab.patterns import orders as orders
from dashboard.lab.patterns import queue as queue
from dashboard.lab.patterns.pattern import Pattern as Pattern

PATTERNS: dict[str, Pattern] = {
    pattern.name: pattern for module in (orders, queue, accounts) for pattern in module.PATTERNS
}
